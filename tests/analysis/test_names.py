"""Names that a reader recognizes; hostile ones cost nothing."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cgtool.analysis.graph.kernel_names import (
    MAX_SHORT,
    demangle,
    demangle_all,
    short_kernel,
    short_kernels,
)

COPY = (
    "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastIZZZNS0_23direct_copy_"
    "kernel_cudaERNS_18TensorIteratorBaseEENKUlvE1_clEvENKUlvE5_clEvEUlfE_EEvS4_RKT_EUliE_EEviT1_"
)
SCALAR_MUL = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_13AUnaryFunctorIfffNS0_15binary_internal10"
    "MulFunctorIfEEEESt5arrayIPcLm2EEEEviT0_T1_"
)
TENSOR_MUL = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_13BinaryFunctorIfffNS0_15binary_internal10"
    "MulFunctorIfEEEESt5arrayIPcLm3EEEEviT0_T1_"
)
SPLIT_K = (
    "_ZN8cublasLt19splitKreduce_kernelILi32ELi16EiffffLb0EfffLb1ELb0ELb0ELb0EEEvNS_18cublasSplitKPara"
    "msIT4_EEPKT2_PKT8_PT7_PT3_PKS2_SF_PKT9_S6_PSG_PvlPS2_PiSL_SL_SF_SF_SF_SF_SF_"
)
SUM_128 = (
    "_ZN2at6native13reduce_kernelILi128ELi4ENS0_8ReduceOpIfNS0_14func_wrapper_tIfZNS0_11sum_functorI"
    "fffEclERNS_14TensorIteratorEEUlffE_EEjfLi4ELi4EEEEEvT1_"
)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEvi"
            "T0_T1_",
            "vectorized_elementwise_kernel<FillFunctor<float>>",
        ),
        (COPY, "elementwise_kernel<direct_copy_kernel_cuda(float)>"),
        (
            "_ZN2at6native29vectorized_elementwise_kernelILi4EZNS0_11fill_kernelERNS_14TensorIteratorEE"
            "Ut_St5arrayIPcLm1EEEEviT0_T1_",
            "vectorized_elementwise_kernel<fill_kernel>",
        ),
        (SCALAR_MUL, "vectorized_elementwise_kernel<MulFunctor<float>>"),
        (SPLIT_K, "cublasLt::splitKreduce_kernel<float>"),
        (SUM_128, "reduce_kernel<sum_functor<float>>"),
        (
            "_ZN2at6native43_GLOBAL__N__50f1b6c4_10_Dropout_cu_0e96ed3824fused_dropout_kernel_vecIffjLi1"
            "ELi4EbEEvNS_4cuda6detail10TensorInfoIKT_T1_EENS5_IS6_S8_EENS5_IT4_S8_EES8_T0_NS_15Philox"
            "CudaStateE",
            "fused_dropout_kernel_vec<float, bool>",
        ),
        (
            "_ZN7cutlass7Kernel2I41cutlass_80_simt_sgemm_64x64_8x5_nn_align1EEvNT_6ParamsE",
            "cutlass_80_simt_sgemm_64x64_8x5_nn_align1",
        ),
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_"
            "alignc4_execute_kernel__5x_cublas",
            "sm80_xmma_gemm_f32_nt_n_32x32x8_ffma",
        ),
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_"
            "segment_k_off_kernel__5x_cublas",
            "sm90_xmma_gemm_bf16_f32_tn_n_128x128x64_warpgroupsize1x1x1",
        ),
        (
            "_Z39fmha_cutlassF_f32_aligned_64x64_rf_sm80N22PyTorchMemEffAttention15AttentionKernelIfN7"
            "cutlass4arch4Sm80ELb1ELi64ELi64ELi64ELb1ELb1EE6ParamsE",
            "fmha_cutlassF_f32_aligned_64x64_rf_sm80",
        ),
        (
            "_ZN2at6native12_GLOBAL__N_125multi_tensor_apply_kernelINS1_18TensorListMetadataILi4EEENS1_"
            "20FusedAdamMathFunctorIfLi4EEEJEEEvT_T0_DpT1_",
            "multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>",
        ),
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_"
            "alignc4_execute_split_k_kernel__5x_cublas",
            "sm80_xmma_gemm_f32_nn_n_32x32x8_ffma_split_k",
        ),
        (
            "_ZN8internal5gemvx6kernelIiiffffLb0ELb1ELb1ELb0ELi7ELb0E18cublasGemvParamsExIi30cublasGem"
            "vTensorStridedBatchedIKfES5_S3_IfEfEEENSt9enable_ifIXntT5_EvE4typeET11_",
            "gemvx::kernel<float>",
        ),
        (
            # As torch.profiler demangles it.
            "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
            "launch_clamp_scalar(at::TensorIteratorBase&, c10::Scalar)::{lambda()#1}::operator()() "
            "const::{lambda()#7}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul> >"
            "(int, std::array<char*, 2ul>)",
            "vectorized_elementwise_kernel<launch_clamp_scalar(float)>",
        ),
        ("triton_poi_fused_add_mul_0", "triton_poi_fused_add_mul_0"),
        ("nvjet_hsh_128x64_64x8_2x1_v_bz_TNN", "nvjet_hsh_128x64_64x8_2x1_v_bz_TNN"),
        ("", ""),
    ],
)
def test_kernels_of_an_h200(name: str, short: str) -> None:
    assert short_kernel(name) == short


def test_kernels_that_would_share_a_name_are_distinguished() -> None:
    assert short_kernels([SCALAR_MUL, TENSOR_MUL, COPY]) == {
        SCALAR_MUL: "vectorized_elementwise_kernel<4, AUnaryFunctor<MulFunctor<float>>>",
        TENSOR_MUL: "vectorized_elementwise_kernel<4, BinaryFunctor<MulFunctor<float>>>",
        COPY: "elementwise_kernel<direct_copy_kernel_cuda(float)>",
    }
    other = SUM_128.replace("ILi128ELi4E", "ILi512ELi1E", 1)
    assert short_kernels([other, SUM_128])[other] == "reduce_kernel<512, 1, sum_functor<float>>"
    flipped = SPLIT_K.replace("Lb1ELb0ELb0ELb0E", "Lb1ELb1ELb0ELb0E")
    assert short_kernels([flipped, SPLIT_K]) == {
        SPLIT_K: "cublasLt::splitKreduce_kernel<float>",
        flipped: "cublasLt::splitKreduce_kernel<float> #2",
    }
    gemv = (
        "_ZN8internal5gemvx6kernelIiiffffLb0ELb1ELb1ELb0ELi7ELb0E18cublasGemvParamsExIi30cublasGem"
        "vTensorStridedBatchedIKfES5_S3_IfEfEEENSt9enable_ifIXntT5_EvE4typeET11_"
    )
    six = gemv.replace("ELi7E", "ELi6E")
    # `gemvx::kernel<int, int, float, float, float, ..., 6, false>` tells a reader nothing.
    assert short_kernels([gemv, six]) == {
        six: "gemvx::kernel<float>",
        gemv: "gemvx::kernel<float> #2",
    }
    same = ["x" * 200 + "a", "x" * 200 + "b"]
    assert len(set(short_kernels(same).values())) == 2


@given(st.lists(st.text(max_size=60), max_size=6))
def test_names_are_never_lost_and_always_bounded(names: list[str]) -> None:
    short = short_kernels(names)
    assert set(short) == set(names)
    assert len(set(short.values())) == len(short)
    assert all(len(text) <= MAX_SHORT + 8 for text in short.values())


pieces = st.sampled_from(
    ["a", "::", "<", ">", "(", ")", ", ", " ", "'lambda'", "void ", "4", "Kernel2"]
)


@given(st.lists(pieces, max_size=40).map("".join))
def test_unbalanced_signatures_do_no_harm(text: str) -> None:
    assert isinstance(short_kernel(text), str)


def test_names_that_are_not_mangled_or_not_well_stay() -> None:
    for name in ("my_kernel", "_Zbroken", "_Z\x00", "_Z3foo\n", "\ud800", "_Z" + "N" * 100_000):
        assert demangle(name) == name


def bomb(levels: int) -> str:
    """``f(A<int,int>, A<S,S>, A<that,that>, ...)``: each argument twice as long as the last."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    name = "_Z1f1AIiiE"
    for level in range(levels):
        part = digits[level // 36] * (level >= 36) + digits[level % 36]
        name += f"S_IS{part}_S{part}_E"
    return name


def test_a_name_of_500_bytes_that_stands_for_gigabytes_stays_mangled() -> None:
    start = time.monotonic()
    names = [bomb(30), "_Z3fooi", bomb(45)]
    assert demangle_all(names) == {names[0]: names[0], "_Z3fooi": "foo(int)", names[2]: names[2]}
    assert time.monotonic() - start < 60


def test_an_honest_name_with_many_references_is_demangled_in_the_child() -> None:
    name = "_Z1fPi" + "S_" * 60
    assert demangle(name) == f"f({', '.join(['int*'] * 61)})"
    assert demangle_all([bomb(40), name])[name].startswith("f(int*, int*")
