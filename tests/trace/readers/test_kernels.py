from __future__ import annotations

import pytest

from dsprof.trace.readers.kernels import is_usual, library_of, operation_of


@pytest.mark.parametrize(
    ("kernel", "library", "op"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "NCCL or RCCL", "all_reduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "NCCL or RCCL", "send_recv"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "NCCL or RCCL", ""),
        ("rcclGenericKernel<1, false>(ncclDevComm*)", "NCCL or RCCL", ""),
        ("hcom_broadcast__303_0", "HCCL", "broadcast"),
        ("oneccl_allreduce_ring<float>", "oneCCL", "all_reduce"),
        ("void deep_ep::intranode::dispatch<8, 1024>(int4*)", "DeepEP", "dispatch"),
        ("void deep_ep::internode_ll::combine<9, 3>(void*)", "DeepEP", "combine"),
        ("nvshmemi_barrier_threadgroup", "NVSHMEM", ""),
        (
            "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(int)",
            "symmetric memory",
            "all_reduce",
        ),
        ("two_shot_all_reduce_kernel_inplace", "symmetric memory", "all_reduce"),
        (
            "void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*)",
            "custom all-reduce",
            "all_reduce",
        ),
        ("quickreduce::allreduce_prototype_twoshot<int>", "quantised all-reduce", "all_reduce"),
    ],
)
def test_families(kernel: str, library: str, op: str) -> None:
    assert (library_of(kernel), operation_of(kernel)) == (library, op)


@pytest.mark.parametrize(
    "kernel",
    [
        "ampere_sgemm_128x64_tn",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(at::native::ReduceOp)",
        "void at::native::vectorized_gather_kernel<16, long>(char*)",
        "void at::native::_scatter_gather_elementwise_kernel<128, 8>(int)",
        "triton_red_fused_add_native_layer_norm_0",
        "void deepspeed::dequant_reduce<8>(float*)",
        "broadcast_in_dim_fusion",
    ],
)
def test_computation_is_in_no_family(kernel: str) -> None:
    assert library_of(kernel) == ""


def test_the_usual_test_is_by_name_alone() -> None:
    assert is_usual("ncclDevKernel_Generic")
    assert is_usual("RcclKernel")
    assert not is_usual("void deep_ep::intranode::dispatch<8>(int4*)")
