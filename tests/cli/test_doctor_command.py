import json

import pytest

pytest.importorskip("convgrad.runtime.doctor")


def test_the_machine_is_shown_as_text_and_as_json(convgrad):
    status, out, err = convgrad("doctor")
    assert (status, err) == (0, "")
    report = json.loads(convgrad("doctor", "--json")[1])
    assert report
    for key in report:
        assert key in out
