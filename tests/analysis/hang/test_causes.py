from dsprof.analysis.ending import Symptoms
from dsprof.analysis.hang.causes import in_own_code

C10D = "/v/site-packages/torch/distributed/distributed_c10d.py"


def test_a_rank_that_waits_for_a_lost_store_is_said_to():
    stack = (
        f"{C10D}:9 _new_process_group_helper",
        f"{C10D}:5 new_group",
        "/home/u/train.py:33 main",
    )
    found = in_own_code(Symptoms(stack=stack, store_call="new_group", lost_store="node0:29500"))

    assert found is not None
    kind, text = found
    assert kind == "store"
    assert "waits in new_group at" in text
    assert text.endswith("train.py:33 main, for the store at node0:29500, which does not answer")


def test_a_call_of_torch_that_is_not_recorded_has_the_name_that_was_called():
    wrapper = C10D.replace("distributed_c10d", "c10d_logger")
    stack = (
        f"{C10D}:9 _new_process_group_helper",
        f"{wrapper}:83 wrapper",
        f"{C10D}:5 new_group",
        "/home/u/train.py:33 main",
    )
    found = in_own_code(Symptoms(stack=stack))
    assert found == ("diverged", "is in new_group of torch.distributed at /home/u/train.py:33 main")


def test_a_frame_whose_line_is_no_number_of_a_line_says_nothing():
    assert in_own_code(Symptoms(stack=(f"/home/u/train.py:{'9' * 5000} main",))) is None
