"""The same answers on a GPU: skipped where there is none."""

import threading

import pytest
import torch
from closeness import within
from reference import at_end, masked, recurrence
from torch.profiler import ProfilerActivity, profile

import plmu
from plmu.ops.gpu import direct, highway, launch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
on_hopper = pytest.mark.skipif(not launch.has_hopper(torch.device("cuda", 0)), reason="no Hopper GPU")
# What torch.compile says of itself.
quiet = pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated", "ignore:TensorFloat32 tensor cores")

# Error of each precision against float64: products in it, float32 accumulation, a float32 state.
ERROR = {torch.float64: 1e-11, torch.float32: 5e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("algorithm", ["auto", "recurrent", "toeplitz", "fft", "chunked"])
@pytest.mark.parametrize(
    ("order", "theta", "time", "channels"), [(4, 6.0, 129, 64), (15, 15.0, 63, 1), (40, 50.0, 372, 7)]
)
@pytest.mark.parametrize("padded", [False, True])
def test_all_algorithms(dtype, algorithm, order, theta, time, channels, padded):
    torch.manual_seed(0)
    system = plmu.DelayNetwork(order, theta).discretize()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    u = torch.randn(3, time, channels, dtype=dtype)
    weight = (torch.randn(5, order, channels) / (order * channels) ** 0.5).to(dtype)
    state = torch.randn(3, order, channels, dtype=wide)
    lengths = torch.tensor([time, 0, time // 2]) if padded else None
    exact = [t.double().clone().requires_grad_() for t in (u, weight, state)]
    given = [t.cuda().requires_grad_() for t in (u, weight, state)]

    m = masked(recurrence(exact[0], system, exact[2]), lengths)
    o = torch.einsum("btdx,odx->bto", m, exact[1])
    last = at_end(m, exact[2], lengths)
    mixture = torch.randn_like(o)
    (o * mixture).sum().add((last * last).sum()).backward()

    on_device = None if lengths is None else lengths.cuda()
    ours, ours_last = plmu.project(given[0], system, given[1], given[2], on_device, algorithm=algorithm)
    (ours.double() * mixture.cuda()).sum().add((ours_last.double() ** 2).sum()).backward()
    assert ours.dtype == dtype
    assert ours_last.dtype == wide
    within(_error(ours, o), ERROR[dtype])
    within(_error(ours_last, last), ERROR[wide])
    for one, other in zip(given, exact, strict=True):
        within(_error(one.grad, other.grad), 2 * ERROR[dtype])

    states, _ = plmu.states(given[0], system, given[2], on_device, algorithm=algorithm)
    within(_error(states, m), ERROR[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_resets_and_final_state(dtype):
    torch.manual_seed(0)
    system = plmu.DelayNetwork(6, 20.0).discretize()
    u, resets = torch.randn(2, 150, 5, dtype=dtype), torch.rand(2, 150) < 0.05
    expected = recurrence(u, system, resets=resets)
    m, last = plmu.states(u.cuda(), system, resets=resets.cuda())
    within(_error(m, expected), ERROR[dtype])
    within(_error(plmu.final_state(u.cuda(), system, resets=resets.cuda()), expected[:, -1]), ERROR[torch.float32])
    within(_error(last, expected[:, -1]), ERROR[torch.float32])


def test_a_thread_that_has_not_called_cuda_yet():
    """Where all memory is at hand, nothing before our own kernels brings the GPU's context into the thread."""
    system = plmu.DelayNetwork(4, 6.0).discretize()
    u = torch.randn(8, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(64, 4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.set_multithreading_enabled(False):  # memory for the gradients, but nothing in their own thread
        o, _ = plmu.project(u, system, weight, algorithm="fused")
        expected = torch.autograd.grad(o, (u, weight), torch.ones_like(o), retain_graph=True)
    ones, found = torch.ones_like(o), []

    def work():
        found.append(plmu.project(u.detach(), system, weight.detach(), algorithm="fused")[0])

    plmu.project(u.detach(), system, weight.detach(), algorithm="fused")
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.testing.assert_close(found[0], o.detach(), rtol=0, atol=0)
    torch.testing.assert_close(torch.autograd.grad(o, (u, weight), ones), expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("theta", "batch"), [(6.0, 3), (300.0, 4), ([4.0, 300.0], 5)], ids=["inputs before chunks", "states", "windows"]
)
def test_kernels_that_are_launched_directly_answer_as_by_triton(dtype, theta, batch, monkeypatch):
    """Batches differ, so that no launch was prepared before."""
    layer = plmu.ParallelLMU(64, 88, order=4, theta=theta, encoder=False, algorithm="fused").cuda().to(dtype)
    x = torch.randn(batch, 300, 64, device="cuda", dtype=dtype, requires_grad=True)
    made = []
    real = direct.Launch._launcher
    monkeypatch.setattr(direct.Launch, "_launcher", lambda *given: made.append(given) or real(*given))

    def results():
        out, last = layer(x)
        return out, last, *torch.autograd.grad(out.sin().sum() + last.sin().sum(), (x, *layer.parameters()))

    first, again, third = results(), results(), results()
    assert made or torch.version.hip, "this version of Triton is known"
    monkeypatch.setattr(direct, "_hooked", lambda: True)
    for one in zip(first, again, third, results(), strict=True):
        assert all(torch.equal(value, one[0]) for value in one[1:])


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize(("order", "theta"), [(4, 6.0), (16, 100.0)], ids=["inputs before chunks", "states"])
def test_the_final_state_is_made_beside_the_projection(order: int, theta: float, captured: bool) -> None:
    """Where the projection has memory of its own for a last round of halves, and what follows needs both."""
    system = plmu.DelayNetwork(order, theta).discretize()
    u = torch.randn(9, 2000, 192, device="cuda").bfloat16()
    weight = torch.randn(256, order, 192, device="cuda").bfloat16() / (order * 192) ** 0.5

    def call():
        o, last = plmu.project(u, system, weight, algorithm="fused")
        return o.sum(1), last.sum(2), o[:, -1], last

    call()  # compiles
    torch.cuda.synchronize()
    exact = plmu.project(u.double(), system, weight.double(), algorithm="chunked")
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = call()
    first = None
    for _ in range(50):
        if captured:
            graph.replay()
        else:
            found = call()
        values = [value.clone() for value in found]
        first = first or values
        torch.testing.assert_close(values, first, rtol=0, atol=0)
    within(_error(first[2], exact[0][:, -1].cpu()), ERROR[torch.bfloat16])
    within(_error(first[3], exact[1].cpu()), ERROR[torch.float32])


@quiet
def test_layers_compiled_captured_and_autocast():
    torch.manual_seed(0)
    layer = plmu.ParallelLMU(3, 16, order=8, theta=30.0, memory_size=4).cuda()
    x = torch.randn(4, 200, 3, device="cuda")
    out, state = layer(x)
    compiled, _ = torch.compile(layer, fullgraph=True)(x)
    torch.testing.assert_close(compiled, out, rtol=1e-3, atol=1e-4)
    with torch.autocast("cuda", torch.bfloat16):
        half, half_state = layer(x)
    assert half.dtype == torch.bfloat16
    assert half_state.dtype == torch.float32
    within(_error(half, out), 2e-2)
    graph, still = torch.cuda.CUDAGraph(), x.clone()
    with torch.no_grad():
        layer(still)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            captured, _ = layer(still)
        still.copy_(2 * x)
        graph.replay()
        torch.testing.assert_close(captured, layer(2 * x)[0], rtol=1e-4, atol=1e-5)
    stepped = None
    for t in range(200):
        y, stepped = layer.step(x[:, t], stepped)
    within(_error(y, out[:, -1]), 1e-4)
    within(_error(stepped, state), 1e-4)


@pytest.mark.parametrize("every", [None, 60], ids=["without resets", "with resets"])
@pytest.mark.parametrize(
    "options",
    [{"encoder": False, "input_to_output": False}, {"encoder": False}, {"encoder": False, "theta": [5.0, 90.0]}, {}],
    ids=["bias and ReLU", "W_x", "W_x and windows", "encoder and W_x"],
)
def test_layers_in_one_launch(options, every):
    """Called eagerly twice, the second time by its route, and captured: the same bits, and right. The exact ReLU is
    zero where ours is."""
    torch.manual_seed(0)
    given = {"order": 4, "theta": 6.0, "memory_size": 200, **options}
    layer = plmu.ParallelLMU(200, 328, **given, algorithm="fused").to("cuda", torch.bfloat16)
    torch.nn.init.normal_(layer.bias)
    double = plmu.ParallelLMU(200, 328, **given, algorithm="chunked").to("cuda", torch.float64)
    double.load_state_dict(layer.state_dict())
    x = torch.randn(67, 200, 200, device="cuda", dtype=torch.bfloat16)
    resets = None if every is None else torch.rand(67, 200, device="cuda") < 1 / every
    grad_out = torch.randn(67, 200, 328, device="cuda", dtype=torch.bfloat16)

    def results(one, x):
        x = x.clone().requires_grad_()
        out, _ = one(x, resets=resets)
        return [out.detach(), *torch.autograd.grad(out, (x, *one.parameters()), grad_out.to(out))]

    ours, again = results(layer, x), results(layer, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = results(layer, x)
    graph.replay()
    for first, second, third in zip(ours, again, captured, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(first, third)
    within(_error(ours[0], double(x.double(), resets=resets)[0]), ERROR[torch.bfloat16])
    double.f2 = lambda total: torch.where(ours[0] > 0, total, 0.0)
    for value, exact in zip(ours, results(double, x.double()), strict=True):
        within(_error(value, exact), 2 * ERROR[torch.bfloat16])


def _repeated(call):
    """The results of two calls, and of a third as a CUDA graph: all on one stream, as gradients in a graph must be."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        first, second, graph = call(), call(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            captured = call()
        graph.replay()
    torch.cuda.synchronize()
    return first, second, captured


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated", "ignore:.*should not be instantiated")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("features", [256, 136, 13])
def test_highway_layers(features: int, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel: the same bits twice and captured. By torch: the same up to its rounding, of the same W x + b."""
    layer = plmu.Highway(features).cuda()
    x = torch.randn(23, 180, features, device="cuda", requires_grad=True)
    grad_out = torch.randn(23, 180, features, device="cuda").bfloat16()
    real, calls = highway.gradients, []
    monkeypatch.setattr(highway, "gradients", lambda *given: calls.append(given[0].shape) or real(*given))

    def results():
        call = torch.compile(layer, fullgraph=True) if compiled else layer

        def both():
            with torch.autocast("cuda", torch.bfloat16):
                out = call(x)
            return [out.detach(), *torch.autograd.grad(out, (x, *layer.parameters()), grad_out)]

        first, *others = _repeated(both)
        torch.compiler.reset()
        for other in others:
            assert all(torch.equal(one, two) for one, two in zip(first, other, strict=True))
        return first

    ours = results()
    assert len(calls) == 3
    monkeypatch.setattr(highway, "on_gpu", lambda x: False)
    for value, right in zip(ours, results(), strict=True):
        assert value.dtype == right.dtype
        within(_error(value, right), ERROR[torch.bfloat16])
    assert len(calls) == 3


@on_hopper
@quiet
@pytest.mark.parametrize(
    ("options", "every"),
    [
        ({"encoder": False, "input_to_output": False}, None),
        ({"encoder": False}, None),
        ({"encoder": False, "theta": [5.0, 90.0]}, 60),
        ({"encoder": False, "output_activation": "silu"}, None),
        ({"output_activation": None}, None),
    ],
    ids=["bias and ReLU", "W_x", "W_x, windows and resets", "another activation", "encoder and W_x"],
)
def test_compiled_layers_have_the_bits_of_eager_ones(options, every):
    """Under autocast, as a CUDA graph, and in half precision. The encoder, and activations other than ReLU, are left to
    the compiler, which may round in other places."""
    torch.compiler.reset()
    given = {"order": 4, "theta": 6.0, "memory_size": 200, **options}
    layer = plmu.ParallelLMU(200, 328, **given, algorithm="fused").cuda()
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(67, 200, 200, device="cuda")
    resets = None if every is None else torch.rand(67, 200, device="cuda") < 1 / every
    grad_out = torch.randn(67, 200, 328, device="cuda", dtype=torch.bfloat16)

    def call(x):
        with torch.autocast("cuda", torch.bfloat16):
            return layer(x, resets=resets)[0]

    compiled = torch.compile(call, fullgraph=True)

    def results(run):
        leaves = (x.clone().requires_grad_(), *layer.parameters())
        out = run(leaves[0])
        return [out.detach(), *torch.autograd.grad(out, leaves, grad_out)]

    def agree(found, right):
        for value, expected in zip(found, right, strict=True):
            assert value.dtype == expected.dtype
            if options.get("encoder", True) or "output_activation" in options:
                within(_error(value, expected), 2 * ERROR[torch.bfloat16])
            else:
                assert torch.equal(value, expected)

    first, *others = _repeated(lambda: results(compiled))
    agree(first, results(call))
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    layer.bfloat16()
    x = x.bfloat16()
    agree(results(compiled), results(call))


@on_hopper
@quiet
@pytest.mark.parametrize("from_input", [False, True], ids=["bias and ReLU", "W_x"])
def test_compiled_layers_launch_no_kernel_for_bias_and_relu(from_input):
    torch.compiler.reset()
    options = {"order": 4, "theta": 6.0, "encoder": False, "input_to_output": from_input, "algorithm": "fused"}
    layer = plmu.ParallelLMU(200, 328, **options).to("cuda", torch.bfloat16)
    x = torch.randn(67, 200, 200, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    grad_out = torch.randn(67, 200, 328, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(lambda x: layer(x)[0], fullgraph=True)

    def call():
        return torch.autograd.grad(compiled(x), (x, *layer.parameters()), grad_out)

    call(), call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        call()
        torch.cuda.synchronize()
    counts = {one.key: one.count for one in profiler.key_averages()}
    ours = {"project": 2, "finish": 0, "through_output": 1, "weight_gradient": 1}  # no final state is asked for
    assert {name: counts.get(name, 0) for name in ours} == ours, counts
    assert not [name for name in counts if name.startswith("triton_") or "at::native::reduce_kernel" in name]


def _error(value, exact):
    exact = exact.detach().double().cpu()
    return float((value.detach().double().cpu() - exact).norm() / exact.norm().clamp(min=1e-300))


@pytest.mark.parametrize(("order", "hidden"), [(4, 49), (40, 111), (256, 30)])
@pytest.mark.parametrize("theta", [1.0, 1000.0], ids=["short window", "near the identity"])
def test_the_original_lmu(order: int, hidden: int, theta: float) -> None:
    layer = plmu.LMU(1, hidden, order=order, theta=theta * order)
    x = torch.randn(5, 37, 1)
    exact = [*_lmu_results(layer.double(), x.double())]
    ours = [*_lmu_results(layer.float().cuda(), x.cuda())]
    for a, b in zip(ours, exact, strict=True):
        within(_error(a, b), 4 * ERROR[torch.float32])  # gradients sum over all steps


def _lmu_results(layer: plmu.LMU, x: torch.Tensor) -> list[torch.Tensor]:
    out, (h, m) = layer(x)
    return [out, h, m, *torch.autograd.grad(out.sin().sum() + m.square().sum(), list(layer.parameters()))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("algorithm", ["auto", "recurrent", "toeplitz", "fft", "chunked", "fused"])
@pytest.mark.parametrize(("order", "theta"), [(4, 6.0), (8, 200.0)], ids=["inputs before chunks", "states"])
def test_a_bad_input_stays_in_its_sequence_and_on_request_behind_its_step(
    dtype: torch.dtype, algorithm: str, order: int, theta: float
) -> None:
    system = plmu.DelayNetwork(order, theta).discretize()
    clean = torch.randn(3, 300, 64, device="cuda", dtype=dtype)
    clean[1, 150, 5] = 0.0
    u = clean.clone()
    u[1, 150, 5] = float("nan")
    weight = torch.randn(128, order, 64, device="cuda", dtype=dtype)

    def results(u: torch.Tensor) -> tuple[torch.Tensor, ...]:
        m, last = plmu.states(u, system, algorithm=algorithm)
        return *plmu.project(u, system, weight, algorithm=algorithm), m[..., 5], last

    right = results(clean)
    for value, expected in zip(results(u), right, strict=True):
        assert torch.equal(value[[0, 2]], expected[[0, 2]])
        if value.shape[1] == 300:
            assert value[1, 150:].isnan().flatten(1).any(1)[0]
            if algorithm in ("chunked", "fused"):  # steps in blocks before its own; a plan takes at most 128 a block
                assert torch.equal(value[1, :22], expected[1, :22])
    with plmu.isolate_nonfinite():
        for value, expected in zip(results(u), right, strict=True):
            assert torch.equal(value[[0, 2]], expected[[0, 2]])
            if value.shape[1] == 300:
                assert torch.equal(value[1, :150], expected[1, :150])
                assert value[1, 150:].isnan().all()
            else:
                assert value[1, :, 5].isnan().all()
                assert torch.equal(value[1, :, :5], expected[1, :, :5])


@pytest.mark.parametrize("algorithm", ["chunked", "fused"])
def test_a_state_that_overflowed_ends_at_a_reset(algorithm: str) -> None:
    system = plmu.LinearSystem([[5.0]], [1.0])
    u, weight = torch.ones(2, 150, 3, device="cuda"), torch.randn(4, 1, 3, device="cuda")
    resets = torch.zeros(2, 150, dtype=torch.bool, device="cuda")
    resets[:, 110::20] = True
    found, right = (plmu.project(u, system, weight, algorithm=one, resets=resets) for one in (algorithm, "recurrent"))
    assert not right[0][:, 60:110].isfinite().any()
    for value, expected in zip(found, right, strict=True):
        finite = expected.isfinite()
        assert torch.equal(value.isfinite(), finite)
        assert _error(value[finite], expected[finite]) < ERROR[torch.float32]
