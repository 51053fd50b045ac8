"""Short names of kernels: what a reader recognizes, in one line.

The rules, in order:

1. A mangled name is demangled; return type, parameters and noise namespaces (``at::native``,
   ``cutlass``, ``std``, anonymous ones, ...) go. A name that is not mangled (Triton, most of
   cuDNN) stays as it is, but for rule 5.
2. PyTorch's generic kernels keep their name and the functor that makes the difference:
   ``vectorized_elementwise_kernel<FillFunctor<float>>``, ``reduce_kernel<MeanOps<float>>``;
   wrappers around the functor go, and a lambda is named for the function that holds it, with its
   argument types: ``elementwise_kernel<direct_copy_kernel_cuda(float)>``.
3. Of template arguments the types stay, each once; numbers, flags, index types and helpers
   (loaders, offset calculators, metadata) go, unless there is nothing else or they are a tile.
4. CUTLASS's ``Kernel2<X>`` is ``X``, which already says tile and layout.
5. ``sm80_xmma_gemm_..._tilesize32x32x8_...`` keeps architecture, operation, dtypes (equal ones
   once), layout and tile.
6. What is longer than ``MAX_SHORT`` is cut at its end, with ``...``.

Short names are for reading; two kernels may share one. ``short_kernels`` distinguishes them: it
gives them back their numbers and adapters (``reduce_kernel<128, 4, sum_functor<float>>``), or,
where that would be longer than ``MAX_DISTINGUISHED``, a number of their own (``#2``).

The Itanium scheme lets a name refer back to its own parts, so a name of 300 bytes can stand for
gigabytes. Names with few references are demangled here; the rest in one child process whose
memory and time are limited, and a name that does not survive there stays mangled.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache

import pycxxfilt

MAX_MANGLED = 1 << 16
"""Characters; a longer name is shown as it is."""
MAX_DEMANGLED = 1 << 18
_UNNAMED = re.compile(r"(\d+)(?=_GLOBAL__N_)")
"""The length of a name, and the name."""
_REFERENCE = re.compile(r"[ST][0-9A-Z]*_")

_CHILD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
import pycxxfilt
for line in sys.stdin:
    try:
        text = pycxxfilt.demangle(line.rstrip("\\n")) or ""
    except ValueError:
        text = ""
    print(text if len(text) <= int(sys.argv[1]) else "", flush=True)
"""


@lru_cache(maxsize=1 << 14)
def demangle(name: str) -> str:
    """The C++ signature of a mangled name; names that are not mangled, or not well, unchanged."""
    if not _mangled(name) or not name.isprintable():
        return name
    if not _cheap(name):
        return _limited([name])[0]
    try:
        text = pycxxfilt.demangle(name)
    except ValueError:
        return name
    return text if text and len(text) <= MAX_DEMANGLED else name


def demangle_all(names: Iterable[str]) -> dict[str, str]:
    """``demangle`` of many names: at most one child process for all the costly ones."""
    unique = dict.fromkeys(names)
    costly = [name for name in unique if _mangled(name) and not _cheap(name)]
    limited = dict(zip(costly, _limited(costly), strict=True))
    return {name: limited[name] if name in limited else demangle(name) for name in unique}


def _mangled(name: str) -> bool:
    return name.startswith("_Z") and len(name) <= MAX_MANGLED and name.isascii()


def _cheap(name: str) -> bool:
    # It takes two references to what is before them to double a name.
    doublings = len(_REFERENCE.findall(name)) // 2
    return doublings < 24 and len(name) << doublings <= 1 << 24


def _limited(names: Sequence[str]) -> list[str]:
    """Demangle in a child with bounded memory and time; what it dies of stays mangled."""
    results: list[str] = []
    for _ in range(3):
        rest = list(names[len(results) :])
        if not rest:
            break
        lines = [name if name.isprintable() else "" for name in rest]
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", _CHILD, str(MAX_DEMANGLED)],
                input="\n".join(lines) + "\n",
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            break
        answers = done.stdout.split("\n")[:-1]
        results += [text or name for text, name in zip(answers, rest, strict=False)]
        if len(answers) < len(rest):
            results.append(rest[len(answers)])
    return results + list(names[len(results) :])


def same_in_every_build(kernel: str) -> str:
    """The mangled name without what nvcc made up for an unnamed namespace: a hash of the source
    file, which another build of PyTorch has otherwise."""
    kept, at = [], 0
    for match in _UNNAMED.finditer(kernel):
        if match.start() >= at:
            kept += [kernel[at : match.start()], "12_GLOBAL__N_1"]
            # As the length says; no name is longer than a mangled name may be.
            at = match.end() + int(match[1][-5:])
    return "".join([*kept, kernel[at:]])


MAX_SHORT = 96
MAX_DISTINGUISHED = 72
_MAX_PARSED = 1 << 14
_MAX_DEPTH = 24

_NOISE_NAMESPACE = re.compile(
    r"(?:(?:at::native|at::cuda|at|c10|std|cutlass|detail|impl|internal|binary_internal|memory|"
    r"pytorch_flash|PyTorchMemEffAttention|\(anonymous namespace\)|CUB_\w+_NS|"
    r"THRUST_\w+_NS)::)+"
)
_WRAPPERS = frozenset(
    {
        *("ReduceOp", "func_wrapper_t", "gpu_kernel_impl", "gpu_kernel_impl_nocast"),
        *("opmath_gpu_kernel_with_scalars", "Kernel", "Kernel2"),
    }
)
"""Templates around the thing of interest, which is their first argument that is not a scalar."""
_ADAPTERS = frozenset({"AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor"})
"""Wrappers that say which operand is a scalar: kept where it tells two kernels apart."""
_HELPER = re.compile(
    r"^(?:array|TensorListMetadata|\w*Metadata|\w*OffsetCalculator|LoadWithoutCast|"
    r"StoreWithoutCast|LoadWithCast|StoreWithCast|PhiloxCudaState|TensorIterator\w*|TensorInfo|"
    r"integral_constant|cublas[A-Z]\w*|allocator|enable_if|identity)\b"
)
_LITERAL = re.compile(r"^(?:\([^()]*\))?-?(?:\d+(?:u?l*|\.\d+f?)|true|false)$")
_SCALAR = re.compile(
    r"^(?:unsigned |signed )?(?:void|bool|char|short|int|long|long long|float|double|half|"
    r"__half|__nv_bfloat16|Half|BFloat16|Float8_\w+|(?:u?int\d+_t)|half_t|bfloat16_t|tfloat32_t|"
    r"complex<\w+>)$"
)
_INDEX = frozenset(
    {"int", "unsigned int", "long", "unsigned long", "long long", "unsigned long long"}
)
_TILE = re.compile(r"Shape|Tile|[Tt]raits")
_LAMBDA = re.compile(r"^'(?:lambda|unnamed)\d*'|^\{lambda")
_NUMBER_IN_GNU = re.compile(r"#\d+\}$")
"""The end of ``{lambda(float)#1}``, which LLVM writes ``'lambda'(float)``."""
_QUALIFIER = re.compile(r"(?:\s*(?:const|volatile|[*&]))+$")
_IN_BRACKETS = re.compile(r"<.*>", re.DOTALL)
_XMMA = re.compile(r"^(?:\w+?_)?sm\d+_xmma_\w+$")
_DTYPE = r"(?:f64|f32|f16|bf16|tf32|i8|i32|u8|e4m3|e5m2|c32|c64|f8|s8)"


def words_of(kernel: str) -> frozenset[str]:
    """The part of a name that all demanglers write alike: the words before its
    parameters, in no order.

    GNU's writes ``f(int)::{lambda(float)#2}``, LLVM's ``void f(int)::'lambda0'(float)``, and they
    number references in different ways.
    """
    text = demangle(kernel).replace("(anonymous namespace)", "")
    text = text[: _last_parenthesis(text)] if text.endswith(")") else text
    text = _LAMBDA_WORD.sub(lambda match: f" lambda {int(match[1] or -1) + 2} ", text)
    return frozenset(_WORD.findall(text)) - {"void"}


_LAMBDA_WORD = re.compile(r"'lambda(\d*)'")
_WORD = re.compile(r"[A-Za-z_]\w*|\d+")


def _last_parenthesis(text: str) -> int:
    """Where the parenthesis begins that a text ends with."""
    depth = 0
    for position in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[position], 0)
        if depth == 0:
            return position
    return len(text)


def short_kernel(name: str) -> str:
    """The short name of one kernel, mangled or not."""
    return _shorten(demangle(name))


def short_kernels(names: Iterable[str]) -> dict[str, str]:
    """Short names that distinguish the given kernels.

    Where two kernels would share one, the form with numbers and adapters is taken, and where that
    is still not enough, ``#2``, ``#3`` follow in the order of the mangled names.
    """
    demangled = demangle_all(names)
    short = {name: _shorten(text) for name, text in demangled.items()}
    for group in _sharing(short):
        longer = {name: _shorten(demangled[name], True) for name in group}
        # A difference among a dozen arguments does not help a reader.
        if max(map(len, longer.values())) <= MAX_DISTINGUISHED:
            short.update(longer)
    for group in _sharing(short):
        for number, name in enumerate(sorted(group)[1:], start=2):
            short[name] = f"{short[name]} #{number}"
    return short


def _sharing(short: dict[str, str]) -> list[list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for name, text in short.items():
        groups[text].append(name)
    return [group for group in groups.values() if len(group) > 1]


@lru_cache(maxsize=1 << 14)
def _shorten(text: str, full: bool = False) -> str:
    if full and "<" not in text:
        return _cut(text)
    if _XMMA.match(text):
        return _cut(_xmma(text))
    if len(text) > _MAX_PARSED or not ("(" in text or "<" in text or "::" in text):
        return _cut(text)
    *outer, last = _split(_signature(text), "::")
    head, arguments = _template(last)
    # What the noise left of the namespace: `cublasLt::epilogue::`.
    spaces = [f"{name}::" for name in outer if "<" not in name and "(" not in name]
    name = "".join([*spaces, head])
    if head in _WRAPPERS:
        return _cut(_wrapped(arguments, 0, full) or name)
    shown = _arguments(arguments, 0, full, numbers=full)
    return _cut(f"{name}<{', '.join(shown)}>" if shown else name)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHORT else text[: MAX_SHORT - 3] + "..."


def _xmma(text: str) -> str:
    text = re.sub(r"_(?:stage\d+|warpsize\w+?x\w+?x\d+|align[a-z]\d+)", "", text)
    text = re.sub(r"_tilesize", "_", text)
    text = re.sub(r"_execute_(split_k_)?\w*$", r"_\1", text).rstrip("_")

    def once(match: re.Match[str]) -> str:
        return "_" + "_".join(dict.fromkeys(re.findall(_DTYPE, match[0])))

    return re.sub(rf"(?:_(?:{_DTYPE})+)+(?=_|$)", once, text, count=1)


def _split(text: str, separator: str) -> list[str]:
    """Split where no bracket is open. Unbalanced text (hostile) comes back in fewer pieces."""
    pieces: list[str] = []
    depth = start = position = 0
    while position < len(text):
        char = text[position]
        if char in "<([{":
            depth += 1
        elif char in ">)]}" and not (char == ">" and text[position - 1 : position] == "-"):
            depth -= 1
        elif depth == 0 and text.startswith(separator, position):
            pieces.append(text[start:position])
            position += len(separator)
            start = position
            continue
        position += 1
    pieces.append(text[start:])
    return pieces


def _signature(text: str) -> str:
    """Without return type, parameters and noise namespaces: ``f<float, 4>``, ``cub::g``."""
    text = text.replace("operator()", "operator__").replace(") const", ")")
    text = _NOISE_NAMESPACE.sub("", text)
    words = _split(text, " ")
    # The return type comes before the name; `const` and the like may follow the parameters.
    name = next((word for word in words if "(" in _IN_BRACKETS.sub("", word)), words[-1])
    return name[: _parameters_at(name)]


def _parameters_at(text: str) -> int:
    """Where the parameter list of a name starts; the length of the text without one."""
    depth = 0
    for position, char in enumerate(text):
        if char == "<":
            depth += 1
        elif char == ">":
            depth -= 1
        elif char == "(" and depth == 0:
            return position
    return len(text)


def _template(text: str) -> tuple[str, list[str]]:
    """``name<a, b>`` as its name and arguments."""
    start = text.find("<")
    if start <= 0 or not text.endswith(">"):
        return text, []
    return text[:start], [argument.strip() for argument in _split(text[start + 1 : -1], ",")]


def _arguments(arguments: list[str], depth: int, full: bool, *, numbers: bool = False) -> list[str]:
    """Rule 3."""
    if depth > _MAX_DEPTH:
        return []
    kept: list[str] = []
    for argument in arguments:
        plain = _QUALIFIER.sub("", argument)
        if _LITERAL.match(plain):
            if numbers:
                kept.append(plain.lstrip("-").rstrip("ul"))
        elif _SCALAR.match(plain):
            kept.append(plain)
        elif not _HELPER.match(plain):
            kept.append(_functor(plain, depth + 1, full))
    kept = [text for text in kept if text]
    if numbers:
        return kept
    kept = [text for text in kept if text not in _INDEX] or kept
    inside = " ".join(text for text in kept if not _SCALAR.match(text))
    return [
        text
        for text in dict.fromkeys(kept)
        if not (_SCALAR.match(text) and re.search(rf"[<(, ]{re.escape(text)}[>), ]", inside))
    ]


def _wrapped(arguments: list[str], depth: int, full: bool) -> str:
    """The first argument that is a thing of its own, else the types."""
    for argument in arguments:
        plain = _QUALIFIER.sub("", argument)
        if not (_LITERAL.match(plain) or _SCALAR.match(plain) or _HELPER.match(plain)):
            return _functor(plain, depth + 1, full)
    return ", ".join(_arguments(arguments, depth + 1, full))


def _functor(text: str, depth: int, full: bool) -> str:
    """Rule 2, for one template argument that is a class or a lambda."""
    if depth > _MAX_DEPTH:
        return "..."
    # `void f<float>(...)::'lambda'(float)`: the return type of a function that holds a lambda.
    words = _split(text, " ")
    text = next((word for word in words if "(" in word or "<" in word), text)
    components = _split(text, "::")
    first_lambda = next((at for at, name in enumerate(components) if _LAMBDA.match(name)), None)
    end = len(components) if first_lambda is None else first_lambda
    owner = next(
        (name for name in reversed(components[:end]) if not name.startswith("operator__")), ""
    )
    head, arguments = _template(owner[: _parameters_at(owner)])
    if head in _WRAPPERS:
        return _wrapped(arguments, depth, full)
    if head in _ADAPTERS:
        inner = _wrapped(arguments, depth, full)
        return f"{head}<{inner}>" if full else inner
    if _HELPER.match(head):
        return ""
    shown = _arguments(arguments, depth, full, numbers=_TILE.search(head) is not None)
    if shown:
        return f"{head}<{', '.join(shown)}>"
    if first_lambda is None:
        return head
    # The innermost lambda's argument types are the dtypes of this instance.
    last = _NUMBER_IN_GNU.sub("", components[-1])
    parameters = last[_parameters_at(last) :].removeprefix("(").removesuffix(")")
    types = _arguments(_split(parameters, ", "), depth, full) if parameters else []
    return f"{head}({', '.join(types)})" if types else head
