"""Locks, and the intents that are locks."""

from __future__ import annotations

from mutations import Mutation

_FILE = "durable.py"
_DURABLE = "unit/test_durable.py"
_RULES = "unit/test_recovery_rules.py"

MUTATIONS = [
    Mutation(
        "a lock is not taken",
        _FILE,
        "                fcntl.flock(fd, kind | fcntl.LOCK_NB)\n",
        "                _ = kind\n",
        "one operation at a time",
        (f"{_DURABLE}::test_an_exclusive_lock_refuses_others_and_shared_ones_agree",),
    ),
    Mutation(
        "every lock is shared",
        _FILE,
        "fcntl.LOCK_SH if shared else fcntl.LOCK_EX",
        "fcntl.LOCK_SH",
        "one operation at a time",
        (f"{_DURABLE}::test_an_exclusive_lock_refuses_others_and_shared_ones_agree",),
    ),
    Mutation(
        "every lock is exclusive",
        _FILE,
        "fcntl.LOCK_SH if shared else fcntl.LOCK_EX",
        "fcntl.LOCK_EX",
        "commands run side by side",
        (f"{_DURABLE}::test_an_exclusive_lock_refuses_others_and_shared_ones_agree",),
    ),
    Mutation(
        "a lock on a removed file counts",
        _FILE,
        "        if not same:\n",
        "        if False:\n",
        "nothing is done to a workspace that was removed",
        (f"{_RULES}::test_a_lock_that_goes_while_it_is_taken_is_refused",),
    ),
    Mutation(
        "a lock does not wait",
        _FILE,
        "                if time.monotonic() >= deadline:\n",
        "                if deadline:\n",
        "operations wait for one another",
        (f"{_DURABLE}::test_a_lock_waits_for_its_holder",),
    ),
    Mutation(
        "an intent is not locked",
        _FILE,
        "            fcntl.flock(fd, fcntl.LOCK_EX)\n",
        "",
        "recovery never touches a living operation",
        (f"{_RULES}::test_recovery_leaves_the_intents_of_the_living",),
    ),
    Mutation(
        "an intent replaces that of another operation",
        _FILE,
        "            _renameat2(temporary, path, _RENAME_NOREPLACE)\n            made = path\n",
        "            _renameat2(temporary, path, 0)\n            made = path\n",
        "one operation at a time",
        (f"{_RULES}::test_two_operations_cannot_announce_themselves_at_once",),
    ),
    Mutation(
        "an intent that could not be settled goes all the same",
        _FILE,
        "            if not announced.left:\n                os.unlink(path)\n",
        "            os.unlink(path)\n",
        "what an operation left behind is settled by recovery",
        (f"{_RULES}::test_an_intent_that_was_left_stays",),
    ),
    Mutation(
        "recovery settles living operations",
        "recovery.py",
        "            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "            pass\n",
        "recovery never touches a living operation",
        (f"{_RULES}::test_recovery_leaves_the_intents_of_the_living",),
    ),
    Mutation(
        "two collections at once",
        "store/locking.py",
        '    return durable.locked(path, timeout_s=timeout_s, what="the collector of the store")\n',
        "    return durable.locked(path, shared=True, timeout_s=timeout_s)\n",
        "one collection at a time",
        ("unit/test_store_snapshots.py::test_two_collections_at_once_do_not_meet",),
    ),
]
