"""Programs whose graph fails in a late replay, at the line that ends with an arrow."""

import torch
import triton
import triton.language as tl
from cuda.bindings import driver as cu
from cuda.bindings import nvrtc
from torch.cuda._utils import _cuda_load_module


@triton.jit
def shifted(p, offset, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(p + i + tl.load(offset), tl.load(p + i, mask=i < n) + 1.0, mask=i < n)


@triton.jit
def shifted_read(p, out, offset, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + i, tl.load(p + i + tl.load(offset), mask=i < n), mask=i < n)


FAR = 1 << 40


def counter():
    """How often it ran, on the device; faults begin after the warm-up and two replays."""
    return torch.zeros((), dtype=torch.long, device="cuda")


def late(calls, last=5):
    """0 in calls up to the last right one, and then far away."""
    calls.add_(1)
    return (calls > last) * FAR


def writes_out_of_bounds():
    p, calls = torch.zeros(1024, device="cuda"), counter()

    def step():
        offset = late(calls)
        shifted[(8,)](p, offset, 1024, block=128)  # <-
        return p + 1

    return step


def reads_out_of_bounds():
    p, out, calls = torch.zeros(1024, device="cuda"), torch.zeros(1024, device="cuda"), counter()

    def step():
        offset = late(calls)
        shifted_read[(8,)](p, out, offset, 1024, block=128)  # <-
        return out + 1

    return step


def bad_index():
    table, calls = torch.randn(8, 4, device="cuda"), counter()
    index = torch.zeros(4, dtype=torch.long, device="cuda")

    def step():
        index.add_(late(calls))
        return table[index] * 2  # <-

    return step


def bad_gather():
    table, calls = torch.randn(8, 4, device="cuda"), counter()
    index = torch.zeros(2, 4, dtype=torch.long, device="cuda")

    def step():
        index.add_(late(calls))
        return table.gather(0, index) * 2  # <-

    return step


def bad_class():
    logits, calls = torch.randn(8, 4, device="cuda"), counter()
    target = torch.zeros(8, dtype=torch.long, device="cuda")

    def step():
        target.add_(late(calls))
        return torch.nn.functional.cross_entropy(logits, target)  # <-

    return step


def on_a_side_stream():
    table, calls, side = torch.randn(8, 4, device="cuda"), counter(), torch.cuda.Stream()
    index = torch.zeros(4, dtype=torch.long, device="cuda")

    def step():
        index.add_(late(calls))
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            picked = table[index]  # <-
        other = table * 3
        torch.cuda.current_stream().wait_stream(side)
        return picked.sum() + other.sum()

    return step


def in_backward():
    class Picks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, index, calls):
            ctx.save_for_backward(index, calls)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            index, calls = ctx.saved_tensors
            return gradient[index + late(calls)] * 2, None, None  # <-

    x, calls = torch.randn(4, 4, device="cuda", requires_grad=True), counter()
    index = torch.arange(4, device="cuda")

    def step():
        x.grad = None
        Picks.apply(x, index, calls).square().sum().backward()
        return x.grad

    return step


def in_backward_of_gather():
    table, calls = torch.randn(8, 4, device="cuda", requires_grad=True), counter()
    index = torch.zeros(2, 4, dtype=torch.long, device="cuda")

    def step():
        table.grad = None
        picked = table.gather(0, index)  # <-
        index.data.add_(late(calls))
        picked.square().sum().backward()
        return table.grad

    return step


def in_an_optimizer_in_the_second_replay():
    weight, calls = torch.randn(8, 4, device="cuda"), counter()
    rows = torch.zeros(2, dtype=torch.long, device="cuda")

    def step():
        loss = weight.square().sum()
        rows.add_(late(calls, 4))
        weight[rows] = weight[:2] * 0.9  # <- replay 2
        return loss

    return step


def compiled():
    table, calls = torch.randn(8, 4, device="cuda"), counter()
    index = torch.zeros(4, dtype=torch.long, device="cuda")

    @torch.compile
    def pick(table, index):
        return table[index].relu() * 2  # <-

    def step():
        index.add_(late(calls))
        return pick(table, index)

    return step


def kernel(name, source):
    """A kernel of CUDA C++, as an extension has them."""
    program = driver_value(nvrtc.nvrtcCreateProgram(source.encode(), b"faults.cu", 0, [], []))
    architecture = "--gpu-architecture=sm_{}{}".format(*torch.cuda.get_device_capability())
    driver_value(nvrtc.nvrtcCompileProgram(program, 1, [architecture.encode()]))
    binary = b" " * driver_value(nvrtc.nvrtcGetCUBINSize(program))
    driver_value(nvrtc.nvrtcGetCUBIN(program, binary))
    return _cuda_load_module(binary, [name])[name]


def driver_value(result):
    code, *values = result
    assert int(code) == 0, code
    return values[0] if len(values) == 1 else values


def writes_out_of_bounds_in_an_extension():
    add_one = kernel(
        "add_one",
        """extern "C" __global__ void add_one(float* p, const long long* shift) {
            p[threadIdx.x + *shift] += 1.0f;
        }""",
    )
    p, calls = torch.zeros(64, device="cuda"), counter()

    def step():
        offset = late(calls)
        add_one((1, 1, 1), (64, 1, 1), [p, offset])  # <-
        return p + 1

    return step


def loads_misaligned_vectors():
    add_four = kernel(
        "add_four",
        """extern "C" __global__ void add_four(const float* p, const long long* shift, float* out) {
            const float4 four = *reinterpret_cast<const float4*>(p + (*shift != 0));
            *out = four.x + four.y + four.z + four.w;
        }""",
    )
    p, out, calls = torch.ones(64, device="cuda"), torch.zeros(1, device="cuda"), counter()

    def step():
        offset = late(calls)
        add_four((1, 1, 1), (1, 1, 1), [p, offset, out])  # <-
        return out + 1

    return step


def traps():
    trap = kernel(
        "trap",
        """extern "C" __global__ void trap(const long long* far) {
            if (*far) __trap();
        }""",
    )
    x, calls = torch.ones(64, device="cuda"), counter()

    def step():
        offset = late(calls)
        trap((1, 1, 1), (32, 1, 1), [offset])  # <-
        return x + 1

    return step


def overflows_its_stack():
    recurse = kernel(
        "recurse",
        """__device__ __noinline__ int depth(volatile int* p, long long left) {
            volatile int kept[64];
            kept[left & 63] = *p;
            return left ? kept[left & 63] + depth(p, left - 1) + kept[(left + 1) & 63] : *p;
        }
        extern "C" __global__ void recurse(int* p, const long long* depths) {
            p[1] = depth(p, *depths);
        }""",
    )
    p, calls = torch.zeros(2, dtype=torch.int, device="cuda"), counter()

    def step():
        offset = late(calls)
        recurse((1, 1, 1), (1, 1, 1), [p, offset])  # <-
        return p + 1

    return step


def in_a_child_graph():
    table, calls = torch.randn(8, 4, device="cuda"), counter()
    index = torch.zeros(4, dtype=torch.long, device="cuda")

    def pick():
        index.add_(late(calls))
        return table[index] * 2

    pick()
    calls.zero_()
    inner = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(inner):
        picked = pick()
    child = cu.CUgraph(inner.raw_cuda_graph())

    def step():
        before = table.sum()
        stream = cu.CUstream(torch.cuda.current_stream().cuda_stream)
        if not torch.cuda.is_current_stream_capturing():
            inner.replay()
        else:
            graph, waits_for = being_captured(stream)
            _, node = cu.cuGraphAddChildGraphNode(graph, waits_for, len(waits_for), child)  # <-
            continue_after(stream, node)
        return picked + before

    return step


def being_captured(stream):
    """The graph that a stream is captured into, and the nodes that its next one waits for."""
    _, _, graph, nodes, *_, count = driver_value(cu.cuStreamGetCaptureInfo(stream))
    return graph, nodes[:count]


def continue_after(stream, node):
    """What a capturing stream does next waits for the node."""
    only = cu.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
    driver_value(cu.cuStreamUpdateCaptureDependencies(stream, [node], None, 1, only.value))
