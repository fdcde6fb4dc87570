"""Logs of real jobs, against what is known of each: also what must not be said."""

from __future__ import annotations

from functools import cache

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.model import Diagnosis
from dsprof.findings.finding import Finding, Status
from dsprof.trace.run import find_run
from tests.shared_data import log

GIB = 2**30


@cache
def judged(name: str) -> Diagnosis:
    return diagnose(find_run([log(name)]))


def found(name: str, *statuses: Status) -> dict[str, Finding]:
    wanted = statuses or (Status.FAIL,)
    return {f.rule: f for f in judged(name).findings if f.status in wanted}


def values(name: str, kind: str) -> list[str]:
    return [fact.value for fact in judged(name).logged if fact.kind == kind]


def test_a_job_of_64_ranks_on_omnipath_uses_its_network():
    name = "logs/bigscience/meg_ds*.gz"
    run = judged(name).run
    assert (run.world_size, run.ranks, len(run.hosts)) == (64, list(range(64)), 16)
    assert values(name, "network") == ["IB"]
    assert len(values(name, "network devices")[0].split()) == 4
    assert values(name, "version") == ["NCCL 2.7.8"]
    findings = found(name, Status.FAIL, Status.INFO, Status.ERROR)
    assert findings.keys() == {"unknown-config-key", "data-quality"}
    summary = findings["unknown-config-key"].summary
    assert "stage3_param_persitence_threshold is ignored" in summary
    assert findings["data-quality"].summary == "The job reached its time limit."


def test_32_ranks_on_4_nodes():
    name = "logs/bigscience/all_reduce*.txt"
    run = judged(name).run
    assert (len(run.ranks), len(run.hosts)) == (32, 4)
    assert values(name, "channels") == ["2 coll channels, 2 p2p channels"]
    assert values(name, "path") == ["NET/IB", "P2P/IPC"]
    (told,) = found(name, Status.FAIL, Status.INFO, Status.ERROR).values()
    assert (told.rule, told.status) == ("slow-benchmark", Status.INFO)
    assert "all_reduce of 3.73 GiB reaches a bus bandwidth of 5.10 GB/s" in told.summary


def test_one_node_whose_network_is_not_used_is_left_alone():
    name = "logs/bigscience/n1*.txt"
    assert values(name, "network") == ["IB"]
    assert values(name, "path") == ["P2P/IPC"]
    (told,) = found(name, Status.FAIL, Status.INFO, Status.ERROR).values()
    assert (told.rule, told.status) == ("slow-benchmark", Status.INFO)


def test_a_run_that_needs_more_memory_than_there_is_has_no_fragments():
    finding = found("logs/torchtitan_oom/run111*")["device-out-of-memory"]
    assert finding.ranks == tuple(range(8))
    assert "more memory than the device has" in finding.title
    assert "too small for the request" in finding.cause


def test_memory_of_another_process():
    finding = found("logs/torchtitan_oom/run34*")["device-out-of-memory"]
    assert finding.ranks == (4, 5, 6, 7)
    assert finding.title == "Another process holds memory of the same device"
    assert "96.7 GiB" in finding.summary
    in_use = [column.label for column in finding.evidence[0].columns].index("in use by torch")
    assert finding.evidence[0].rows[0][in_use] == pytest.approx(79.17 * GIB, rel=0.001)


@pytest.mark.parametrize(
    ("name", "slack"), [("gpt4llm_16_oom", 2.85 * GIB), ("deepspeed_3869_oom", 1.04 * GIB)]
)
def test_fragments_are_possible_where_the_slack_would_have_served(name, slack):
    finding = found(f"logs/issues/{name}.log")["device-out-of-memory"]
    assert "but not contiguous" in finding.cause
    assert finding.confidence == "medium"
    assert finding.evidence[0].rows[0][6] == pytest.approx(slack, rel=0.01)


def test_hosts_with_and_without_the_network_plugin():
    finding = found("logs/issues/nccl_1634*")["network-differs-across-ranks"]
    assert finding.severity.value == "critical"
    assert "plugin" in finding.summary


@pytest.mark.parametrize("name", ["nccl_952_ib_no_device", "nccl_527_efa_ok", "rccl_tests_163"])
def test_no_cause_is_claimed(name):
    assert not found(f"logs/issues/{name}*", Status.FAIL, Status.INFO, Status.ERROR)


def test_efa_and_rccl_are_recognised():
    assert values("logs/issues/nccl_527_efa_ok*", "libfabric provider") == ["efa"]
    assert values("logs/issues/rccl_tests_163*", "version") == ["RCCL 2.21.5"]


def test_sockets_between_many_hosts_are_mentioned():
    finding = found("logs/issues/nccl_226*", Status.INFO)["transport-fallback"]
    assert "9 hosts by TCP sockets (ens3)" in finding.summary


def test_ranks_that_are_silent_when_others_time_out():
    finding = found("logs/issues/llamafactory_7396*")["collective-timeout"]
    assert "number 1,580" in finding.summary
    assert (finding.ranks, finding.confidence) == ((1, 2), "low")
    assert {row[4:] for row in finding.evidence[0].rows} == {(1579, 1582), (None, None)}


def test_ranks_that_wait_in_the_same_collective_mismatch_in_nothing():
    finding = found("logs/issues/basicsr_737*")["collective-timeout"]
    assert "no mismatch is visible" in finding.cause
    assert finding.ranks == ()


def test_overflows_at_the_start_are_normal():
    name = "logs/deepspeed_chat/*.gz"
    assert values(name, "loss scale") == ["lowered after an overflow"]
    assert not found(name, Status.FAIL, Status.INFO, Status.ERROR)


def test_the_tables_of_comms_logger():
    name = "comms_tables/*.md"
    rows = {(row.op, row.caller, row.calls): row for row in judged(name).logged_calls}
    worst = judged(name).logged_calls[0]
    assert (worst.op, worst.calls) == ("broadcast", 1)
    gathered = rows["reduce_scatter_tensor", "reduce_scatter_fn", 80]
    assert gathered.message_bytes == pytest.approx(678.86 * 2**20, abs=1)
    assert gathered.total_ns == 1_527_170_000
    assert gathered.world_size == 16
    assert gathered.algbw == pytest.approx(678.86 * 2**20 * 80 / 1.52717)
    assert gathered.busbw == pytest.approx(gathered.algbw * 15 / 16)
    # The one line of a call is of the run that the table counts whole.
    assert rows["reduce_scatter_tensor", "", 40].total_ns == 602_290_000
    once = rows["broadcast", "", 1]
    assert once.mean_ns == 8_317_120_000
    # The releases of that time do not tell what size of an all-gather they log.
    assert rows["all_gather_into_tensor", "", 2].algbw is None
    assert "comms-logger-enabled" in found(name)
