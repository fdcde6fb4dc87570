"""How programs of these tests end, whichever folder they lie in."""

import torch.distributed as dist


def leave_group() -> None:
    """Leave the process group when its threads hold no tensor, and end as examples do.

    A gloo thread takes the GIL to let go of a tensor; where Python is ending by then, it aborts the
    process, dsprof or not. A barrier has no tensor, and by its end those before it are let go of.
    """
    dist.barrier()
    dist.destroy_process_group()
