"""What the host takes from a hostile shim, and the shim from its clients."""

from __future__ import annotations

from mutations import Mutation

_FILE = "shim/wire.py"
_TESTS = "unit/test_wire.py"
_CAPS = "unit/test_wire_caps.py"
_LENGTHS = f"{_CAPS}::test_a_length_beyond_its_cap_is_refused_by_the_length_alone"
_HEADERS = f"{_TESTS}::test_a_bad_header_is_a_protocol_error"
_FLAT = "a hostile peer cannot take memory"
_TYPED = "whatever a peer sends is one typed error"

MUTATIONS = [
    Mutation(
        "a header may have any length",
        _FILE,
        "if not 0 < header_bytes <= MAX_HEADER_BYTES or",
        "if not 0 < header_bytes or",
        _FLAT,
        (_LENGTHS,),
    ),
    Mutation(
        "a header may be empty", _FILE, "if not 0 < header_bytes <=", "if not 0 <= header_bytes <=", _TYPED, (_LENGTHS,)
    ),
    Mutation("a body may have any length", _FILE, " or body_bytes > MAX_BODY_BYTES:", ":", _FLAT, (_LENGTHS,)),
    Mutation(
        "a body of any length is sent",
        _FILE,
        "        if len(body) > MAX_BODY_BYTES:\n",
        "        if False:\n",
        _FLAT,
        (f"{_TESTS}::test_a_body_of_a_mebibyte_crosses_and_a_larger_one_is_refused_before_it_is_sent",),
    ),
    Mutation(
        "a header may nest to any depth",
        _FILE,
        "            if depth > MAX_DEPTH:\n",
        "            if depth < 0:\n",
        _TYPED,
        (f"{_CAPS}::test_a_header_nests_as_deep_as_the_cap_and_no_deeper",),
    ),
    Mutation(
        "a key may occur twice",
        _FILE,
        "    if len(found) != len(pairs):\n",
        "    if not pairs and found:\n",
        _TYPED,
        (_HEADERS,),
    ),
    Mutation(
        "a number may have any length",
        _FILE,
        "    if len(text) > 20:\n",
        "    if len(text) > 4000:\n",
        _TYPED,
        (f"{_CAPS}::test_a_number_has_twenty_digits_at_most",),
    ),
    Mutation(
        "a number may be infinite",
        _FILE,
        "    if value - value != 0:\n",
        "    if value is None:\n",
        _TYPED,
        (_HEADERS,),
    ),
    Mutation(
        "NaN is a number",
        _FILE,
        '    raise ValueError(f"{text} is no number")\n',
        "    return None\n",
        _TYPED,
        (_HEADERS,),
    ),
    Mutation(
        "bytes behind a header are ignored",
        _FILE,
        "        if end != len(text):\n",
        "        if end > len(text):\n",
        _TYPED,
        (_HEADERS,),
    ),
    Mutation(
        "half a surrogate pair is text", _FILE, '        if "\\\\u" in text:', "        if False:", _TYPED, (_HEADERS,)
    ),
    Mutation(
        "a header may be no object",
        _FILE,
        "    if type(value) is not dict:\n",
        "    if value is None:\n",
        _TYPED,
        (_HEADERS,),
    ),
    Mutation(
        "a frame may drip in for ever",
        _FILE,
        "                limit = complete_by if limit is None else min(limit, complete_by)\n",
        "                limit = limit or complete_by + 1e6\n",
        "every wait has a deadline",
        (f"{_TESTS}::test_a_frame_that_drips_in_is_given_up_even_without_a_deadline",),
    ),
]
