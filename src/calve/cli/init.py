"""`calve init`."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from calve.api.init import (
    PIPELINE,
    PipelineProposal,
    RegistryLogin,
    TopicPlace,
    check_folder,
    check_output,
    connection_to_create,
    defined_access,
    propose_for_folder,
    propose_for_topic,
    write_proposal,
)
from calve.errors import InvalidInput
from calve.source.kafka.brokers import BrokerAccess
from calve.source.kafka.registry import RegistryClient

PASSWORD = "CALVE_REGISTRY_PASSWORD"  # noqa: S105 - the name of a variable


@dataclass(frozen=True)
class InitOptions:
    """The options of `calve init`."""

    subject: str
    broker: str | None
    connection: str | None
    registry: str | None
    registry_user: str | None
    output: Path
    force: bool


def run_init(options: InitOptions, home: Path) -> None:
    """Write the file, and say what it is based on."""
    to_stdout = str(options.output) == "-"
    proposal = _proposal(options, home)
    if to_stdout:
        sys.stdout.write(proposal.text)
        return
    write_proposal(proposal, options.output, force=options.force)
    marked = f"{proposal.guesses} guess{'' if proposal.guesses == 1 else 'es'}"
    sys.stdout.write(f"wrote {options.output} from {proposal.looked}; {marked} to look at\n")


def _proposal(options: InitOptions, home: Path) -> PipelineProposal:
    file = PIPELINE if str(options.output) == "-" else str(options.output)
    if options.broker and options.connection:
        raise InvalidInput("--broker and --connection exclude each other")
    if options.broker is None and options.connection is None:
        if options.registry or options.registry_user:
            raise InvalidInput("--registry is for topics", hint="Give --broker or --connection as well.")
        check_folder(options.subject)
        _check_output(options)
        return propose_for_folder(options.subject, file)
    _check_output(options)
    client, login = _registry(options)
    if options.connection is not None:
        place = TopicPlace(options.subject, defined_access(home, options.connection), options.connection, created=False)
    else:
        broker = options.broker or ""
        place = TopicPlace(options.subject, BrokerAccess(broker), connection_to_create(home, broker), created=True)
    return propose_for_topic(place.with_registry(client, login), file)


def _check_output(options: InitOptions) -> None:
    """Before a sample is read, which may take a while."""
    if str(options.output) != "-":
        check_output(options.output, force=options.force)


def _registry(options: InitOptions) -> tuple[RegistryClient | None, RegistryLogin | None]:
    if options.registry is None:
        if options.registry_user is not None:
            raise InvalidInput("--registry-user needs --registry")
        return None, None
    if "@" in options.registry.partition("://")[2].partition("/")[0]:
        raise InvalidInput(
            "the URL of the registry must not have a login", hint=f"Use --registry-user, and set ${PASSWORD}."
        )
    if options.registry_user is None:
        return RegistryClient(options.registry), None
    password = os.environ.get(PASSWORD)
    if password is None:
        raise InvalidInput(f"the variable {PASSWORD} is not set", hint="It has the password of --registry-user.")
    return RegistryClient(options.registry, (options.registry_user, password)), RegistryLogin(
        options.registry_user, PASSWORD
    )
