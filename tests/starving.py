"""Two programs for tests of what the kernel counts by user: one takes all that it gets, one asks whether it gets any.

They run in containers, as users of the host and as root; with the standard library and ctypes alone.
"""

from __future__ import annotations

_COMMON = """
import ctypes, fcntl, os, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
X86 = os.uname().machine == "x86_64"
TIMER_CREATE, MQ_OPEN, IO_SETUP = (222, 240, 206) if X86 else (107, 180, 0)
HELD = []
signal.pthread_sigmask(signal.SIG_BLOCK, {40})
def inotify():
    return libc.inotify_init1(0) >= 0
def signals():
    return libc.sigqueue(os.getpid(), 40, ctypes.c_void_p(0)) == 0
def timers():
    event = (ctypes.c_int * 16)(0, 0, 40, 0)
    return libc.syscall(ctypes.c_long(TIMER_CREATE), ctypes.c_long(1), event, ctypes.byref(ctypes.c_int())) == 0
def pipes():
    pair = os.pipe()
    try:
        fcntl.fcntl(pair[0], 1031, 1 << 20)
        HELD.append(pair)
        return True
    except OSError:
        for end in pair:
            os.close(end)
        return False
def queues():
    queues.number = getattr(queues, "number", 0) + 1
    name = f"hog-{os.getpid()}-{queues.number}".encode()
    flags = ctypes.c_long(os.O_CREAT | os.O_RDWR)
    made = libc.syscall(ctypes.c_long(MQ_OPEN), name, flags, ctypes.c_long(0o600), None) >= 0
    libc.syscall(ctypes.c_long(MQ_OPEN + 1), name)  # the name goes now, the queue with its descriptor
    return made
def aio():
    context = ctypes.c_ulong()
    return libc.syscall(ctypes.c_long(IO_SETUP), ctypes.c_long(64), ctypes.byref(context)) == 0
def ptys():
    try:
        HELD.append(os.openpty())
        return True
    except OSError:
        return False
KINDS = dict(inotify=inotify, signals=signals, timers=timers, pipes=pipes, queues=queues, aio=aio, ptys=ptys)
"""

# Takes until it gets no more, says how much it has, and keeps it.
HOG = (
    _COMMON
    + """
for name, kind in KINDS.items():
    count = 0
    while count < 200_000 and kind():
        count += 1
    print(name, count, flush=True)
print("done", flush=True)
time.sleep(1000)
"""
)

# Says of each whether it gets one.
ASK = (
    _COMMON
    + """
for name, kind in KINDS.items():
    print(name, int(kind()))
"""
)


def parse(text: str) -> dict[str, int]:
    """What one of the programs said, by kind."""
    return {words[0]: int(words[1]) for line in text.splitlines() if len(words := line.split()) == 2}
