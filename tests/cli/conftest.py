import pytest

from convgrad.cli import main


@pytest.fixture
def convgrad(capsys):
    """Run a command: its exit status, what it prints, and what it complains of."""

    def run(*arguments):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as exit:  # argparse
            status = exit.code
        out, err = capsys.readouterr()
        return status, out, err

    return run
