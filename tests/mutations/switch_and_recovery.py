"""The switch of a restore, and what recovery does after a crash."""

from __future__ import annotations

from mutations import Mutation

_SWITCH = "unit/test_recovery_rules.py"
_CUTS = "faults/test_after_power_cuts.py"
_ALL_OR_NOTHING = "a restore is all or nothing across a power cut"

MUTATIONS = [
    Mutation(
        "the switch does not sync",
        "restores.py",
        "            durable.sync_filesystem(home.root)\n            durable.commit_staged(staged, path)\n",
        "            durable.commit_staged(staged, path)\n",
        _ALL_OR_NOTHING,
        (f"{_SWITCH}::test_a_restore_syncs_all_before_the_record_names_it",),
    ),
    Mutation(
        "the switch syncs after the record",
        "restores.py",
        "            durable.sync_filesystem(home.root)\n            durable.commit_staged(staged, path)\n",
        "            durable.commit_staged(staged, path)\n            durable.sync_filesystem(home.root)\n",
        _ALL_OR_NOTHING,
        (f"{_SWITCH}::test_a_restore_syncs_all_before_the_record_names_it",),
    ),
    Mutation(
        "a restore keeps nothing",
        "restores.py",
        "    if at_rest(home, record):\n        return record.history\n    message",
        "    if record:\n        return record.history\n    message",
        "a restore can be undone",
        (f"{_SWITCH}::test_a_restore_can_be_undone",),
    ),
    Mutation(
        "a stack of another tree is restored",
        "restores.py",
        "    if stack.tree != target.tree or bases",
        "    if bases",
        "a restore gives back exactly what the snapshot holds",
        (f"{_SWITCH}::test_a_stack_is_used_only_if_it_is_the_snapshot_s_and_whole",),
    ),
    Mutation(
        "layers of an earlier boot are restored",
        "restores.py",
        "    return all(layers.is_trusted(home, layer) for layer in stack.layers)\n",
        "    return True\n",
        "a restore gives back exactly what the snapshot holds",
        (f"{_SWITCH}::test_a_stack_is_used_only_if_it_is_the_snapshot_s_and_whole",),
    ),
    Mutation(
        "without an engine the files are not synced before the record",
        "containers.py",
        "        durable.sync_filesystem(data)  # the record",
        "        _ = (data)  # the record",
        "a workspace that was reported has its files",
        (f"{_SWITCH}::test_the_files_of_a_new_workspace_are_synced_before_its_record",),
    ),
    Mutation(
        "an intent without its bytes stays for ever",
        "recovery.py",
        "    except (StateError, *MISSING):\n        return None\n    return intent if",
        "    except MISSING:\n        return None\n    return intent if",
        "a power cut blocks no workspace",
        (f"{_CUTS}::test_an_intent_without_its_bytes_is_settled",),
    ),
    Mutation(
        "an intent is obeyed whatever its name",
        "recovery.py",
        "    return intent if intent.workspace_id == name else None\n",
        "    return intent\n",
        "recovery removes nothing but what it was asked to",
        (f"{_CUTS}::test_an_intent_of_another_workspace_removes_nothing",),
    ),
    Mutation(
        "what a dead create made stays",
        "recovery.py",
        '        discard_unborn(home, workspace_id, name_of(home, workspace_id) or "")\n',
        "        pass\n",
        "a create that died leaves nothing",
        (f"{_CUTS}::test_an_intent_without_its_bytes_and_a_record_was_a_create",),
    ),
    Mutation(
        "what the living are building is removed",
        "recovery.py",
        "            if not (pid.isascii() and pid.isdigit() and str(process_start(int(pid))) == start):\n",
        "            if True:\n",
        "recovery never touches a living operation",
        (f"{_SWITCH}::test_recovery_removes_what_the_dead_were_building_and_nothing_else",),
    ),
    Mutation(
        "what the dead were building stays",
        "recovery.py",
        "            if not (pid.isascii() and pid.isdigit() and str(process_start(int(pid))) == start):\n",
        "            if not pid:\n",
        "nothing is left behind",
        (f"{_SWITCH}::test_recovery_removes_what_the_dead_were_building_and_nothing_else",),
    ),
    Mutation(
        "a boot does not give names back",
        "rebooted.py",
        "        os.symlink(record.id, home.name(record.name))\n        mended = True\n",
        "        pass\n",
        "a workspace that was reported is found",
        (f"{_CUTS}::test_records_are_compared_once_in_a_boot",),
    ),
    Mutation(
        "a boot does not give the marks of layers back",
        "rebooted.py",
        "    share_layers(home, needed, record.id)\n",
        "",
        "no layer in use is removed",
        (f"{_CUTS}::test_a_boot_gives_back_names_locks_and_marks",),
    ),
    Mutation(
        "one torn layer stops recovery",
        "layers.py",
        "        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # a power cut leaves neither whole\n",
        "        with contextlib.suppress(FileNotFoundError):\n",
        "a power cut blocks no workspace",
        (f"{_CUTS}::test_a_layer_whose_users_are_no_directory_is_removed_and_stops_nothing",),
    ),
    Mutation(
        "a layer goes with one of its users",
        "layers.py",
        "            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):\n                continue\n            if not",
        "            if not",
        "no layer in use is removed",
        (f"{_SWITCH}::test_a_layer_goes_with_its_last_user",),
    ),
]
