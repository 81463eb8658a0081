"""What one process of a group does in the tests of split tensors: every check in turn, compared with one process.

    python distributed_checks.py RANK PROCESSES FOLDER [CHECK ...]

Without names it is all of them. The processes meet at a file in the folder, and each writes there what became of every
check.
"""

import json
import sys
import traceback
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist
from split_checks import CHECKS

MODULES = "split_operations", "split_networks"  # which fill CHECKS as they are imported, in this order


def main():
    rank, processes, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    names = sys.argv[4:]
    for module in MODULES:
        import_module(module)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=processes, timeout=timedelta(seconds=60)
    )
    outcome = {}
    for function in [each for each in CHECKS if not names or each.__name__ in names]:
        try:
            function()
            outcome[function.__name__] = "passed"
        except BaseException:
            outcome[function.__name__] = traceback.format_exc()
        agreed = [None] * processes
        dist.all_gather_object(agreed, outcome[function.__name__] == "passed")
        if not all(agreed):  # processes may be out of step
            break
    (folder / f"rank{rank}.json").write_text(json.dumps(outcome))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
