import pickle

import pytest

from calve import errors
from calve.errors import BadRow, CalveError, CommitConflict, FencedError, InvalidInput, TransientError, decode

ALL = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, CalveError)]


@pytest.mark.parametrize("cls", ALL, ids=lambda c: c.__name__)
def test_every_error_survives_pickle_with_its_three_texts(cls: type[CalveError]) -> None:
    error = cls("it broke", detail="value 7", hint="mend it")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert (copy.primary, copy.detail, copy.hint) == ("it broke", "value 7", "mend it")


@pytest.mark.parametrize("cls", ALL, ids=lambda c: c.__name__)
def test_every_error_survives_the_message_of_a_spark_exception(cls: type[CalveError]) -> None:
    error = cls('it "broke" ⟧ here', detail="a\nb", hint="ünïcode")
    found = decode(f"Job aborted: PythonException: Traceback ...\n calve: {error.encode()} at org.apache.spark...")
    assert type(found) is cls
    assert found is not None
    assert (found.primary, found.detail, found.hint) == (error.primary, error.detail, error.hint)


@pytest.mark.parametrize(
    "text",
    [
        *("", "nothing here", "⟦calve:", "⟦calve:not json⟧", '⟦calve:["Unknown","a","b","c"]⟧', "⟦calve:5⟧"),
        *('⟦calve:["BadRow",5,"",""]⟧', '⟦calve:[["BadRow"],"a","",""]⟧', '⟦calve:"BadR"⟧', "⟦calve:null⟧"),
        f"⟦calve:{'[' * 100_000}⟧",
    ],
)
def test_text_without_an_encoded_error_decodes_to_none(text: str) -> None:
    assert decode(text) is None


def test_an_error_prints_what_detail_and_hint_on_lines_of_their_own() -> None:
    error = BadRow("record is not JSON", detail="offset 7", hint="fix the producer")
    assert str(error) == "record is not JSON\n  offset 7\n  hint: fix the producer"


def test_families_say_what_to_do_next_and_how_to_exit() -> None:
    assert issubclass(CommitConflict, TransientError)
    assert (TransientError.exit_code, InvalidInput.exit_code, FencedError.exit_code) == (1, 2, 3)


def test_no_error_has_text_that_cannot_be_written() -> None:
    error = CalveError("half \ud800", detail="of a \udfff pair ü", hint="\udcff")
    assert (error.primary, error.detail, error.hint) == ("half \\ud800", "of a \\udfff pair ü", "\\udcff")
    assert str(error).encode()
    assert str(decode(error.encode())) == str(pickle.loads(pickle.dumps(error))) == str(error)
