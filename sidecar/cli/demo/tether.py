"""Becomes another program that the kernel ends when our parent dies: run as a file, between the demo and a server.

It is a program of its own and no hook after a fork, because the demo has threads, and what a forked child of a process
with threads does in Python may wait forever for a lock that none of its threads will let go.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1  # prctl(2)


def main(parent: str, death_signal: str, uid: str, gid: str, *command: str) -> None:
    """Take on ``uid`` and ``gid`` (``-`` keeps ours), bind to ``parent`` and become ``command``."""
    if uid != "-":
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))
    # After the change of user, which would clear it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != int(parent):  # it died before the prctl, and the signal won't come
        sys.exit("the process that started us has ended")
    try:
        os.execv(command[0], command)  # noqa: S606  # this is what the program is for; no shell
    except OSError as refused:
        sys.exit(f"{command[0]}: {refused.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
