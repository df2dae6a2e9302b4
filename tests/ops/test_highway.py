"""The gradients of a highway layer by a kernel, against autograd in float64 and against torch's own: interpreted where
there is no GPU."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from closeness import assert_same, within
from operations import needs_kernels
from torch import Tensor, nn
from torch._functorch.aot_autograd import make_boxed_func
from torch.autograd import forward_ad

import plmu
from plmu.ops import layer_kernels
from plmu.ops.gpu import highway

pytestmark = [
    needs_kernels,
    pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated"),  # torch's own doing
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated"),
]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HALF = [torch.bfloat16, torch.float16]
STEPS = 16  # roundings of a gradient in float32: by σ, whose exponent may be 8 times as large, and by products
FEATURES = 8
NEEDED = [(True, True), (True, False), (False, True), (False, False)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Size]]:
    """The shapes of which the kernel made gradients, on any device."""
    real, found = highway.gradients, []

    def noting(grad_out: Tensor, *rest: Any) -> highway.Gradients:
        found.append(grad_out.shape)
        return real(grad_out, *rest)

    monkeypatch.setattr(highway, "gradients", noting)
    monkeypatch.setattr(highway, "on_gpu", lambda x: True)
    monkeypatch.setattr(layer_kernels, "DEVICES", ("cuda", "cpu"))
    yield found
    torch.compiler.reset()


def layer_of(features: int = FEATURES, dtype: torch.dtype = torch.float32, **options: Any) -> plmu.Highway:
    layer = plmu.Highway(features, **options, device=DEVICE, dtype=dtype)
    nn.init.normal_(layer.both.bias)
    return layer


def input_of(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_()


def by_torch(call: Callable[[], Any]) -> Any:
    """What it is without the kernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(highway, "on_gpu", lambda x: False)
        return call()


def check(rows: int, features: int, dtype: torch.dtype, needed: tuple[bool, bool] = (True, True)) -> None:
    """Each number within the roundings of float32, and that of the result."""
    bias_dtype = torch.float32 if dtype in HALF else dtype  # as under autocast
    weight = (torch.randn(2 * features, features, device=DEVICE) / features**0.5).to(dtype)
    x, grad_out = (torch.randn(rows, features, device=DEVICE).to(dtype) for _ in range(2))
    pre = (2 * torch.randn(rows, 2 * features, device=DEVICE)).to(dtype)
    given = (grad_out, x, weight if needed[0] else None, pre, bias_dtype, needed[1])
    grad_pre, grad_x, grad_bias = highway.gradients(*given)
    again = highway.gradients(*given)
    for value, other in zip((grad_pre, grad_x, grad_bias), again, strict=True):
        assert (value is None and other is None) or torch.equal(value, other), "not bit for bit"
    assert (grad_x is not None, grad_bias is not None) == needed

    wide_x, wide_pre, W = x.double().requires_grad_(), pre.double().requires_grad_(), weight.double()
    transformed, gate = wide_pre.chunk(2, -1)
    out = torch.lerp(wide_x, transformed.relu(), gate.sigmoid())
    direct, exact = torch.autograd.grad(out, (wide_x, wide_pre), grad_out.double())
    eps, narrow = (torch.finfo(one).eps for one in (torch.float32, dtype))
    tiny = torch.finfo(dtype).smallest_normal * narrow  # where numbers lie as far apart as this
    within_float32 = STEPS * eps * grad_out.double().abs() * (1 + wide_x.abs() + transformed.relu())
    error = torch.cat([within_float32, within_float32], -1)  # before rounding

    def near(value: Tensor, right: Tensor, bound: Tensor) -> None:
        within(((value.double() - right).abs() / bound).max(), 1.0)

    assert grad_pre.dtype == dtype
    error_rounded = error + 2 * narrow * exact.abs() + 2 * tiny  # the interpreter rounds towards zero
    near(grad_pre, exact, error_rounded)
    if grad_x is not None:
        assert grad_x.dtype == dtype
        size = exact.abs() @ W.abs()
        summed = error_rounded @ W.abs() + 2 * (features + 1) * eps * size
        near(
            grad_x, direct + exact @ W, summed + within_float32 + 2 * narrow * (2 * direct.abs() + 2 * size) + 4 * tiny
        )
    if grad_bias is not None:
        assert grad_bias.dtype == bias_dtype
        near(grad_bias, exact.sum(0), error.sum(0) + (rows + 2) * eps * exact.abs().sum(0) + tiny)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize(("rows", "features"), [(1, 1), (5, 1), (1000, 7), (5, 8), (1000, 8), (5, 256), (1, 300)])
def test_against_float64(rows: int, features: int, dtype: torch.dtype) -> None:
    check(rows, features, dtype)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("features", [1, 7, 8, 64, 200, 256, 300])
@pytest.mark.parametrize("rows", [1, 5, 1000])
def test_against_float64_at_all_sizes(rows: int, features: int, dtype: torch.dtype) -> None:
    check(rows, features, dtype)


@pytest.mark.parametrize("needed", NEEDED)
@pytest.mark.parametrize(("rows", "features"), [(37, 256), (70, 136)])
def test_several_tiles_of_several_programs(
    rows: int, features: int, needed: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(highway, "PROGRAMS", 3)
    highway._launches.cache_clear()
    check(rows, features, torch.float32, needed)
    highway._launches.cache_clear()


def test_rows_are_divided_among_few_programs() -> None:
    for rows, features in ((23040, 256), (23040, 1024), (7, 8), (1 << 20, 8), (1 << 20, 4096)):
        launch, _, shares = highway._launches(DEVICE, torch.bfloat16, torch.float32, rows, features, True, True)
        programs, columns = launch._grid
        assert programs == shares
        assert shares * columns <= highway.PROGRAMS
        total, _, share = launch._numbers
        assert (shares - 1) * share < total <= shares * share


def test_what_is_not_a_number_or_too_large_goes_where_torch_takes_it() -> None:
    bad = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30, 0.0, -0.0], device=DEVICE)
    x, pre, grad_out = (torch.randn(len(bad), 1, device=DEVICE).expand(-1, 3).contiguous() for _ in range(3))
    pre = torch.cat([pre, pre], -1)
    pre[:, 0], pre[:, 3 + 1], x[:, 2] = bad, bad, bad
    grad_pre, _, _ = highway.gradients(grad_out, x, None, pre, torch.float32, False)
    leaf = pre.clone().requires_grad_()
    transformed, gate = leaf.chunk(2, -1)
    (right,) = torch.autograd.grad(torch.lerp(x, transformed.relu(), gate.sigmoid()), leaf, grad_out)
    torch.testing.assert_close(grad_pre, right, rtol=STEPS * torch.finfo(torch.float32).eps, atol=0, equal_nan=True)


def gradients(layer: plmu.Highway, x: Tensor, grad_out: Tensor, call: Callable | None = None) -> list[Tensor]:
    out = layer(x) if call is None else call(x)
    leaves = [one for one in (x, *layer.parameters()) if one.requires_grad]
    return [out, *torch.autograd.grad(out, leaves, grad_out)]


@pytest.mark.parametrize("shape", [(3, 5), (), (2, 0), (4,)])
def test_a_layer_has_the_gradients_of_torch(shape: tuple[int, ...], calls: list[torch.Size]) -> None:
    layer, x, grad_out = layer_of(), input_of(*shape, FEATURES), torch.randn(*shape, FEATURES, device=DEVICE)
    found = gradients(layer, x, grad_out)
    assert calls == [grad_out.shape]
    assert_same(found, by_torch(lambda: gradients(layer, x, grad_out)))


def test_gradients_that_are_not_contiguous(calls: list[torch.Size]) -> None:
    layer, x = layer_of(), input_of(FEATURES, 6)
    for grad_out in (torch.randn(FEATURES, 6, device=DEVICE).mT, torch.ones(1, 1, device=DEVICE).expand(6, FEATURES)):
        found = gradients(layer, x.detach().mT.requires_grad_(), grad_out)
        assert_same(
            found, by_torch(lambda grad_out=grad_out: gradients(layer, x.detach().mT.requires_grad_(), grad_out))
        )
    assert len(calls) == 2


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_under_autocast(compiled: bool, given: torch.dtype, calls: list[torch.Size]) -> None:
    """Precisions are those that autocast gives; the gradient of the bias is summed up in float32."""
    layer, x = layer_of(), input_of(3, 5, FEATURES, dtype=given)
    grad_out = torch.randn(3, 5, FEATURES, device=DEVICE).bfloat16()

    @torch.autocast(DEVICE.type, torch.bfloat16)
    def call(x: Tensor) -> Tensor:
        return layer(x)

    run = torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call
    found, right = gradients(layer, x, grad_out, run), by_torch(lambda: gradients(layer, x, grad_out, call))
    assert len(calls) == 1
    assert [one.dtype for one in found] == [one.dtype for one in right]
    eps = torch.finfo(torch.bfloat16).eps
    # torch rounds each of the ten operations for W x + b, and so sums of 15 rows or of 16 outputs.
    for value, exact in zip(found, right, strict=True):
        torch.testing.assert_close(value.float(), exact.float(), rtol=0, atol=16 * eps * exact.abs().max().item())


def test_compiled(calls: list[torch.Size]) -> None:
    """The forward pass is a graph of torch's operations, and the backward pass one of ours beside the products."""
    layer, x, grad_out = layer_of(), input_of(3, 5, FEATURES), torch.randn(3, 5, FEATURES, device=DEVICE)
    seen: list[set[str]] = []

    def note(graph: torch.fx.GraphModule, _: list[Any]) -> Any:
        seen.append({str(node.target) for node in graph.graph.nodes if node.op == "call_function"})
        return make_boxed_func(graph)

    backend = torch._dynamo.backends.common.aot_autograd(fw_compiler=note)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    found = gradients(layer, x, grad_out, compiled)
    assert_same(found, by_torch(lambda: gradients(layer, x, grad_out)))
    forward, backward = seen[:2]
    assert "aten.lerp.Tensor" in forward
    assert "plmu.highway_backward.default" in backward
    assert not {"aten.cat.default", "aten.sum.dim_IntList"} & backward
    assert len(calls) == 1
    with torch.no_grad():
        assert torch.equal(compiled(x), layer(x))
    x, grad_out = input_of(4, 7, FEATURES), torch.randn(4, 7, FEATURES, device=DEVICE)
    assert_same(gradients(layer, x, grad_out, compiled), gradients(layer, x, grad_out))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("trained", ["x", "weight", "bias", "x and weight", "weight and bias"])
def test_what_is_frozen_has_no_gradient(trained: str, compiled: bool, calls: list[torch.Size]) -> None:
    layer, x, grad_out = layer_of(), input_of(3, FEATURES), torch.randn(3, FEATURES, device=DEVICE)
    everything = {"x": x, "weight": layer.both.weight, "bias": layer.both.bias}
    for name, one in everything.items():
        one.requires_grad_(name in trained)
    call = torch.compile(layer, fullgraph=True, backend="aot_eager") if compiled else layer
    found = gradients(layer, x, grad_out, call)
    assert len(found) == 1 + len(trained.split(" and "))
    assert len(calls) == 1
    assert_same(found, by_torch(lambda: gradients(layer, x, grad_out)))


def test_where_no_gradient_is_needed_torch_runs(calls: list[torch.Size]) -> None:
    layer, x = layer_of(), input_of(3, FEATURES)
    assert highway.fits(x, *layer.parameters())
    with torch.no_grad():
        assert not highway.fits(x, *layer.parameters())
        assert not layer(x).requires_grad
    layer.requires_grad_(False)
    assert not layer(x.detach()).requires_grad
    assert not highway.fits(x.detach(), *layer.parameters())


def test_second_and_third_derivatives(calls: list[torch.Size]) -> None:
    layer, x = layer_of(dtype=torch.float32), input_of(3, FEATURES)
    leaves = (x, *layer.parameters())

    def derivatives() -> list[Tensor]:
        first = torch.autograd.grad(layer(x).sin().sum(), leaves, create_graph=True)
        assert not calls
        second = torch.autograd.grad(sum(one.square().sum() for one in first), leaves, create_graph=True)
        third = torch.autograd.grad(sum(one.square().sum() for one in second), leaves)
        return [*first, *second, *third]

    found = derivatives()
    calls.clear()
    assert_same(found, by_torch(derivatives))


@pytest.mark.parametrize("trained", ["x", "weight", "bias"])
def test_what_is_not_needed_may_change_before_the_backward_pass(trained: str, calls: list[torch.Size]) -> None:
    """As with `nn.Linear`: the bias always, the weight unless x has a gradient."""
    layer, x = layer_of(), input_of(3, FEATURES).requires_grad_(trained == "x")
    layer.both.weight.requires_grad_(trained == "weight")
    out = layer(x)
    with torch.no_grad():
        layer.both.bias.mul_(0.5)
        if trained != "x":
            layer.both.weight.mul_(0.5)
    out.sum().backward()
    assert len(calls) == 1
    out = layer(x)
    with torch.no_grad():
        layer.both.bias.mul_(0.5)
    with pytest.raises(RuntimeError, match="the weights of a highway layer were changed before a second derivative"):
        torch.autograd.grad(
            out.sum(), [one for one in (x, *layer.parameters()) if one.requires_grad], create_graph=True
        )


def test_under_autocast_calls_share_their_weight(calls: list[torch.Size]) -> None:
    layer, x, saved = layer_of(), input_of(3, FEATURES), {}

    def note(tensor: Tensor) -> Tensor:
        saved[tensor.data_ptr()] = tensor
        return tensor

    kept = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with kept, torch.autocast(DEVICE.type, torch.bfloat16):
        out = layer(layer(layer(x)))
    assert [one for one in saved.values() if one.shape == layer.both.weight.shape] == [layer.both.weight]
    out.sum().backward()
    assert len(calls) == 3


def test_a_compiler_that_traces_gradients_sees_operations_of_torch(
    calls: list[torch.Size], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        pytest.skip("this torch never traces them")
    monkeypatch.setattr(torch._dynamo.config, "trace_autograd_ops", True)
    layer, x = layer_of(), input_of(3, FEATURES)

    def penalised(x: Tensor) -> Tensor:
        out = layer(x)
        (gradient,) = torch.autograd.grad(out.sin().sum(), x, create_graph=True)
        return out.sum() + gradient.square().sum()

    def gradients(call: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(call(x), (x, *layer.parameters()))

    found = gradients(torch.compile(penalised, fullgraph=True, backend="aot_eager"))
    assert not calls
    assert_same(found, by_torch(lambda: gradients(penalised)))


def test_many_gradients_at_once(calls: list[torch.Size]) -> None:
    layer, x, many = layer_of(), input_of(3, FEATURES), torch.randn(2, 3, FEATURES, device=DEVICE)
    leaves = (x, *layer.parameters())
    found = torch.autograd.grad(layer(x), leaves, many, is_grads_batched=True)
    assert not calls
    for i, grad_out in enumerate(many):
        assert_same([one[i] for one in found], list(torch.autograd.grad(layer(x), leaves, grad_out)))


TRANSFORMS: dict[str, Callable[[Callable, Tensor], Any]] = {
    "vmap": lambda call, x: torch.func.vmap(call)(x),
    "grad": lambda call, x: torch.func.grad(lambda given: call(given).sin().sum())(x),
    "jvp": lambda call, x: torch.func.jvp(call, (x,), (x.detach(),))[1],
    "jacfwd of jacrev": lambda call, x: torch.func.jacfwd(torch.func.jacrev(call))(x),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_under_transforms_torch_runs(name: str, compiled: bool, calls: list[torch.Size]) -> None:
    layer, x = layer_of(), input_of(2, 3, FEATURES)

    def call(x: Tensor) -> Any:
        return TRANSFORMS[name](layer, x)

    run = torch.compile(call, fullgraph=True, backend="eager") if compiled else call
    assert_same(run(x), by_torch(lambda: call(x)))
    assert not calls


def test_forward_mode_tracing_and_export_see_operations_of_torch(calls: list[torch.Size]) -> None:
    layer, x = layer_of(), input_of(2, 3, FEATURES)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, torch.ones_like(x)))).tangent
    assert_same(tangent, by_torch(lambda: torch.func.jvp(layer, (x,), (torch.ones_like(x),))[1]))
    for strict in (False, True):
        graph = torch.export.export(layer, (x,), strict=strict).graph
        assert "lerp" in str(graph)
        assert "highway" not in str(graph)
    traced = torch.fx.experimental.proxy_tensor.make_fx(lambda x: torch.autograd.grad(layer(x).sum(), x)[0])(x)
    assert "plmu" not in traced.code
    assert not calls


class Sub(Tensor):
    pass


@pytest.mark.parametrize("what", ["activation", "float64", "hook", "backward hook", "no bias", "subclass", "mixed"])
def test_what_the_kernel_does_not_take(what: str, calls: list[torch.Size]) -> None:
    layer, x = layer_of(activation="tanh" if what == "activation" else "relu"), input_of(3, FEATURES)
    if what == "float64":
        layer, x = layer.double(), x.detach().double().requires_grad_()
    elif what == "hook":
        layer.both.register_forward_hook(lambda module, given, out: 2 * out)
    elif what == "backward hook":
        layer.both.register_full_backward_hook(lambda module, of_in, grad_out: None)
    elif what == "no bias":
        layer.both.bias = None
    elif what == "subclass":
        x = x.detach().as_subclass(Sub).requires_grad_()
    elif what == "mixed":
        with pytest.raises(RuntimeError, match="dtype"):
            layer(x.half())
        return
    out = layer(x)
    out.sum().backward()
    assert torch.equal(out, by_torch(lambda: layer(x)))
    assert not calls


def test_on_a_cpu_torch_runs() -> None:
    out = plmu.Highway(FEATURES)(torch.ones(1, FEATURES))
    assert out.grad_fn is not None
    assert "Lerp" in out.grad_fn.name()
    assert not highway.on_gpu(out)
    assert highway._can_run("cuda") == torch.cuda.is_available()  # not asked of a GPU that is not there
