"""``fedkeel`` and ``python -m fedkeel`` are the command line; signals are heeded before anything else is imported."""

from fedkeel.core.stopping import heeding


def main() -> None:
    with heeding():
        from fedkeel.cli import main as command_line
    command_line()


if __name__ == "__main__":
    main()
