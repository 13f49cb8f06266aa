"""What kernels are called, and what a convolution's kernels are for."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from convtime.conv.kernels import (
    BIAS,
    COPY,
    ELEMENTWISE,
    FILLING,
    LAYOUT,
    MAIN,
    OTHER,
    PADDING,
    REDUCTION,
    UNFOLDING,
    role_of,
    shares_by_role,
)
from convtime.timing.activity import shorten
from tests.helpers.recorded import activity, kernels, layers

ATEN = "void at::native::"
CUDNN = "void cudnn::engines_precompiled::"
TO_NHWC = f"{CUDNN}nchwToNhwcKernel<float, float, (cudnnKernelDataType_t)0>(float const*, float*)"
XMMA = "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize256x64x32"
NVJET = "nvjet_sm90_hsh_128x96_64x7_2x1_v_bz_TNT"
ADD = (
    f"{ATEN}elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::"
    "CUDAFunctor_add<float> >(at::TensorIteratorBase&, at::native::CUDAFunctor_add<float> const&)"
    "::{lambda(int)#1}>(int, at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<float>"
)
COPYING = f"{ATEN}elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda(at::…"
GEMM = "cutlass_80_tensorop_s1688gemm_128x64_16x6_nn_align4"
MANGLED = (
    "_ZN17cutlass__5x_cudnn6KernelINS_4conv6kernel23ImplicitGemmConvolutionINS1_11threadblock22"
    "ImplicitGemmMultistageINS_4ge…"
)
SPLIT_K = "void cutlass__5x_cudnn::Kernel<cutlass__5x_cudnn::reduction::kernel::ReduceSplitK<cutl"
GEMV = "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float>(int)"
DEPTHWISE = "conv_depthwise2d_forward_kernel"
FILL = f"{ATEN}vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std"


@pytest.mark.parametrize(
    ("name", "role", "short"),
    [
        (TO_NHWC, LAYOUT, "nchwToNhwcKernel"),
        ("void tensorTransformGeneric<__half>(cudnn…", LAYOUT, "tensorTransformGeneric"),
        ("void nhwcAddPaddingKernel<__half>(int, int)", PADDING, "nhwcAddPaddingKernel"),
        (ADD, BIAS, "elementwise_kernel, CUDAFunctor_add"),
        (COPYING, COPY, "elementwise_kernel, direct_copy_kernel_cuda"),
        ("memcpy", COPY, "memcpy"),
        ("memset", FILLING, "memset"),
        (FILL, FILLING, "vectorized_elementwise_kernel, FillFunctor"),
        (f"{ATEN}elementwise_kernel<128, relu>(int)", ELEMENTWISE, "elementwise_kernel"),
        (f"{ATEN}im2col_kernel<float>(long)", UNFOLDING, "im2col_kernel"),
        (SPLIT_K, REDUCTION, "ReduceSplitK"),
        ("void cublasLt::splitKreduce_kernel<32, 16>(int)", REDUCTION, "splitKreduce_kernel"),
        ("wgrad2d_c1_k1_nhwc_reduce", REDUCTION, "wgrad2d_c1_k1_nhwc_reduce"),
        ("wgrad2d_c1_k1_nhwc", MAIN, "wgrad2d_c1_k1_nhwc"),
        (f"{XMMA}_warpgroupsize1x1x1_g1_execute_segment_k_off_kernel__5x_cudnn", MAIN, XMMA),
        (f"void cutlass::Kernel2<{GEMM}>({GEMM}::Params)", MAIN, GEMM),
        (MANGLED, MAIN, "ImplicitGemmConvolution"),
        (GEMV, MAIN, "gemvx::kernel"),
        (NVJET, MAIN, NVJET),
        (f"{ATEN}(anonymous namespace)::{DEPTHWISE}<0, float>(a", MAIN, DEPTHWISE),
        ("void fft2d_r2c_32x32<float>(float2*)", MAIN, "fft2d_r2c_32x32"),
        ("my_own_thing", OTHER, "my_own_thing"),
        ("", OTHER, ""),
    ],
)
def test_names_say_what_kernels_are_for(name: str, role: str, short: str) -> None:
    kernel = activity(name)
    assert role_of(kernel) == role
    assert kernel.short_name == short


def test_every_kernel_that_pytorch_ran_for_a_convolution_is_known() -> None:
    assert len(kernels()) > 700
    assert [kernel.name for kernel in kernels() if role_of(kernel) == OTHER] == []
    assert max(len(kernel.short_name) for kernel in kernels()) <= 100
    assert not [kernel for kernel in kernels() if set(kernel.short_name) & set("<>()")]


def test_a_convolution_in_nchw_spends_half_of_its_time_on_layouts() -> None:
    main, layout, filling = shares_by_role(
        layers()["float32 nchw layer1.0.conv2"].pytorch.activities
    )
    assert (main.role, layout.role, filling.role) == (MAIN, LAYOUT, FILLING)
    assert layout.names == ("nchwToNhwcKernel", "nchwToNhwcKernel", "nhwcToNchwKernel")
    assert layout.between_nchw_and_nhwc
    # By hand, of the medians in the file: 32.11 + 2.43 + 28.83 µs of 138.1 µs.
    assert layout.seconds == pytest.approx(63.4e-6, rel=0.01)
    assert main.seconds == pytest.approx(73.2e-6, rel=0.01)
    # Other conversions are not said to be between NCHW and NHWC.
    both = [activity(TO_NHWC), activity("void tensorTransformGeneric<float>(cudnn…")]
    (layout,) = shares_by_role(both)
    assert not layout.between_nchw_and_nhwc
    assert shares_by_role([]) == []


@settings(max_examples=50)
@example("0A", "_ZN")
@example("6Kernel0A", "_ZN")
@given(st.text(), st.sampled_from(["", "_ZN", "void ", "_ZN9999", "Kernel<", "a::b<c<"]))
def test_any_name_has_a_short_one(name: str, beginning: str) -> None:
    assert isinstance(shorten(beginning + name), str)
    role_of(activity(beginning + name))
    if beginning + name:
        assert shorten(beginning + name)
