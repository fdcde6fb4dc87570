from __future__ import annotations

import pytest

from dsprof.environment.launchers import job_keys, local_rank, restarts, run_key


def test_run_key_is_the_same_on_all_ranks_and_differs_between_runs():
    shared = {"MASTER_ADDR": "node-a", "MASTER_PORT": "29500", "SLURM_JOB_ID": "7"}
    keys = {run_key({**shared, "RANK": r, "SLURM_NODEID": r}, 2) for r in "01"}
    assert len(keys) == 1
    for change in (
        {"SLURM_JOB_ID": "8"},
        {"MASTER_PORT": "1"},
        {"TORCHELASTIC_RESTART_COUNT": "1"},
    ):
        assert run_key({**shared, **change}, 2) not in keys
    assert run_key(shared, 4) not in keys


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({"LOCAL_RANK": "1"}, 1),
        ({"LOCAL_RANK": "1", "SLURM_PROCID": "9", "SLURM_LOCALID": "0"}, 1),
        ({"SLURM_PROCID": "9", "SLURM_LOCALID": "1"}, 1),
        ({"OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 1),
        ({"PMI_RANK": "9", "MPI_LOCALRANKID": "1"}, 1),
        ({"SLURM_PROCID": "1", "SLURM_LOCALID": "0"}, -1),  # one task started several ranks
        ({"LOCAL_RANK": ""}, -1),
        ({}, -1),
    ],
)
def test_the_rank_on_the_host_is_what_the_launcher_says_of_this_rank(environ, rank):
    assert local_rank(environ, 9) == rank


def test_the_keys_of_a_job_are_of_its_agent_its_slurm_step_and_its_rendezvous() -> None:
    torchrun = {
        "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_x/none_y/attempt_0/1/error.json",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    again = torchrun | {
        "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_x/none_y/attempt_1/0/error.json",
        "TORCHELASTIC_RESTART_COUNT": "1",
    }
    assert job_keys(torchrun) == job_keys(again) != []
    assert (restarts(torchrun), restarts(again), restarts({})) == (0, 1, -1)
    queued = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
    kinds = [
        key.rpartition(" ")[0] for key in job_keys(torchrun | queued | {"TORCHELASTIC_RUN_ID": "j"})
    ]
    assert kinds == ["agent", "slurm", "perhaps rendezvous", "perhaps slurm"]
    assert restarts(queued | {"SLURM_RESTART_COUNT": "2"}) == 2
