"""What `calve read` prints of a sample table."""

from typer.testing import CliRunner

from calve.cli.main import app
from tests.unit.iceberg.sample import NAME, Sample


def printed(sample: Sample, *options: str) -> str:
    result = CliRunner().invoke(app, ["read", str(NAME), "--home", str(sample.home), *options], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout
