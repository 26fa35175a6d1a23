"""No core dumps: a process that holds secrets, prompts and journal keys leaves no image of its memory behind."""

from __future__ import annotations

import ctypes
import resource
from typing import Final

_PR_SET_DUMPABLE: Final = 4  # linux/prctl.h


def forbid() -> None:
    """For this process and its children: no core file, whatever the machine's limits or `core_pattern` say.

    The limit is inherited over execve, being undumpable is not, so every program says it for itself. It also keeps
    other processes of the same user from reading our memory (ptrace(2)).
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
