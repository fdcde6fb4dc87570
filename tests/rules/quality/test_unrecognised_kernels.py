from __future__ import annotations

from dsprof.findings.finding import Status
from dsprof.rules.quality.unrecognised_kernels import UnrecognisedKernels
from tests.factories import kineto
from tests.factories.device import busy, rank
from tests.factories.trace import judged, rank_trace, said

RULE = UnrecognisedKernels()

COMPUTE = [kineto.kernel(kineto.GEMM, at, 1) for at in range(5)]
CUSTOM = kineto.kernel("void deep_ep::intranode::dispatch<8, 1024>(int4*)", 5, 4, stream=21)
STRANGE = kineto.kernel("ours_exchange(float*)", 10, 3, stream=20)


def ranks(*events):
    return [rank([*COMPUTE, kineto.collective(0, 1), *events], number) for number in range(2)]


def test_long_kernels_of_no_family_are_mentioned():
    finding = said(RULE, *ranks(STRANGE))
    assert finding.status is Status.INFO
    assert "2 long kernels, 6.00 ms" in finding.summary
    one = said(RULE, ranks()[0], ranks(STRANGE)[1])
    assert ": 1 long kernel, 3.00 ms. " in one.summary
    assert finding.evidence[0].rows == (("ours_exchange(float*)", 2, 6_000_000),)
    assert finding.evidence[0].rows == (("ours_exchange(float*)", 2, 6_000_000),)


def test_families_beyond_nccl_are_mentioned():
    finding = said(RULE, *ranks(CUSTOM))
    assert finding.title == "Communication beyond NCCL and RCCL"
    assert finding.evidence[0].rows == (("DeepEP", 2, 8_000_000),)


def test_both_are_two_remarks():
    assert len(judged(RULE, *ranks(STRANGE, CUSTOM))) == 2


def test_nccl_alone_passes():
    assert said(RULE, busy(world_size=1)).status is Status.PASS


def test_traces_without_a_device_do_not_apply():
    assert said(RULE, rank_trace()).status is Status.NOT_APPLICABLE
    assert said(RULE, rank([], world_size=1)).status is Status.NOT_APPLICABLE
