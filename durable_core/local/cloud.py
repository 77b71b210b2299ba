"""The local cloud put together: endpoint, stack, functions, and what triggers them."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from durable_core.clock import SystemClock
from durable_core.errors import UsageError
from durable_core.local.aws_endpoint import REGION, AwsEndpoint
from durable_core.local.emulator_sandbox import EmulatorSandbox
from durable_core.local.function import LocalFunction
from durable_core.local.gateway import Gateway
from durable_core.local.plain_sandbox import PlainSandbox
from durable_core.local.poller import Poller
from durable_core.local.sandbox import Code, Sandbox
from durable_core.local.schedule import Schedule
from durable_core.local.stack import make_stack
from durable_core.local.template import read_template, reduce
from durable_core.local.tools import find_emulator, gather_runtime, runnable, runs_emulator

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from durable_core.local.template import FunctionSpec, QueueTrigger

BUILT: Final = Path(".aws-sam", "host")
"""Where `scripts/build.sh host` puts the functions."""

_STACK: Final = "local"
_VISIBLE: Final = 6  # times the time-out of the function that a queue triggers, as AWS advises


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """How the local cloud differs from the deployed one.

    Attributes:
        project: The folder with `template.yaml`.
        template: Another template than that.
        from_source: Run the functions' source with this environment's packages, instead of what was built.
        plain: Run functions without the emulator.
        aws_port: Of the stand-in for AWS; 0: any.
        port: Of the HTTP API and of Lambda's Invoke; 0: any.
        parameters: Of the template, where they differ from the defaults.
        timeouts_s: Time-outs by function; those of the template are for real work.
        visibility_s: Visibility time-outs by queue; six times the time-out of its function when not named.
        every_s: Period of all schedules; as the template says when None.
        environment: Variables for all functions, beside those of the template.
        logs: A folder for what each sandbox writes; None: standard error.
    """

    project: Path = Path()
    template: Path | None = None
    from_source: bool = False
    plain: bool = False
    aws_port: int = 0
    port: int = 0
    parameters: Mapping[str, str] = field(default_factory=dict)
    timeouts_s: Mapping[str, int] = field(default_factory=dict)
    visibility_s: Mapping[str, int] = field(default_factory=dict)
    every_s: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    logs: Path | None = None


class LocalCloud:
    """What `template.yaml` deploys, running on this machine until it is closed.

    Args:
        settings: How it differs.

    Attributes:
        aws: The stand-in for AWS.
        gateway: For calls from outside.
        functions: By name.
        pollers: Those of the queues, by function.
        outputs: Of the stack.

    Raises:
        UsageError: A tool is missing, a port is taken, the functions weren't built, or the template has what
            isn't known here.

    Example:
        with LocalCloud(LocalSettings(from_source=True)) as cloud:
            cloud.functions["StartRun"].invoke({"workflow": "compliance_scan", "inputs": {}})
    """

    def __init__(self, settings: LocalSettings | None = None) -> None:
        self._settings = settings or LocalSettings()
        self._project = self._settings.project.resolve()
        self._open = ExitStack()
        self.functions: dict[str, LocalFunction] = {}
        self.pollers: dict[str, Poller] = {}
        self._triggers: list[Poller | Schedule] = []
        try:
            self._start()
        except BaseException:  # Ctrl-C too: what has started is to end; it is raised on
            self.close()
            raise

    def __enter__(self) -> LocalCloud:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def specs(self) -> list[FunctionSpec]:
        """The functions, as the template has them."""
        return list(self._specs.values())

    @property
    def store_url(self) -> str:
        """The store, for `durable --store`; its credentials can be anything."""
        variable = next(iter(self.functions.values())).spec.environment["DURABLE_STORE"]
        return f"{self.outputs[variable]}&endpoint={self.aws.url}"

    def close(self) -> None:
        """Ends everything: triggers first, so that nothing starts a sandbox any more."""
        for trigger in self._triggers:
            trigger.stop()
        self._open.close()

    def _start(self) -> None:
        settings = self._settings
        reduced = reduce(read_template(settings.template or self._project / "template.yaml"))
        _check_names("function", settings.timeouts_s, reduced.functions)
        self._specs = reduced.functions
        for spec in reduced.functions.values():
            self._check_code(spec)
        self._tools = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="durable-local-")))
        self._plain = settings.plain or not runs_emulator()
        if not self._plain:
            self._emulator = runnable(find_emulator(self._project), self._tools)
            self._runtime = self._tools / "runtime"
            self._runtime.mkdir()
            gather_runtime(self._runtime)
        if settings.logs is not None:
            settings.logs.mkdir(parents=True, exist_ok=True)
        self.gateway = Gateway(self.functions, settings.port)
        self._open.callback(self.gateway.close)
        self.aws = AwsEndpoint(settings.aws_port)
        self._open.callback(self.aws.close)
        self.outputs = make_stack(
            self.aws,
            reduced,
            _STACK,
            parameters=settings.parameters,
            visibility_s=self._visibilities(),
        )
        for spec in reduced.functions.values():
            self._add(spec)
        for trigger in self._triggers:
            trigger.start()
            self._open.callback(trigger.join)
        # Last in, first out: sandboxes end first, so that whoever waits for one is let go.
        for function in self.functions.values():
            self._open.callback(function.close)
        self.gateway.start()

    def _check_code(self, spec: FunctionSpec) -> None:
        folder = self._folder(spec)
        if not folder.is_dir():
            remedy = "Run scripts/build.sh host, or use --from-source"
            raise UsageError(
                f"the function {spec.name} isn't at {folder}",
                remedy="Mend CodeUri in the template" if self._settings.from_source else remedy,
            )

    def _folder(self, spec: FunctionSpec) -> Path:
        return self._project / (spec.folder if self._settings.from_source else BUILT / spec.name)

    def _timeout_s(self, spec: FunctionSpec) -> int:
        return self._settings.timeouts_s.get(spec.name, spec.timeout_s)

    def _visibilities(self) -> dict[str, int]:
        found = {
            trigger.queue: _VISIBLE * self._timeout_s(spec)
            for spec in self._specs.values()
            for trigger in spec.queues
        }
        _check_names("queue", self._settings.visibility_s, found)
        return {**found, **self._settings.visibility_s}

    def _add(self, spec: FunctionSpec) -> None:
        """A function and what triggers it."""
        code = self._code(spec)
        function = LocalFunction(spec, self.aws, lambda key_id: self._sandbox(code, key_id))
        self.functions[spec.name] = function
        client = self.aws.client("sqs")
        for trigger in spec.queues:
            self.pollers[spec.name] = self._poller(function, trigger, client)
            self._triggers.append(self.pollers[spec.name])
        for bridge in spec.bridges:
            self._triggers.append(
                Poller(
                    function,
                    client,
                    queue_url=self.outputs[f"{bridge}Ref"],
                    queue_arn=self.outputs[f"{bridge}Arn"],
                    as_event=True,
                )
            )
        if spec.every_s is not None:
            every_s = self._settings.every_s or spec.every_s
            self._triggers.append(Schedule(function, every_s, SystemClock()))

    def _poller(self, function: LocalFunction, trigger: QueueTrigger, client: Any) -> Poller:
        limit = self.outputs[trigger.concurrency_output] if trigger.concurrency_output else "10"
        return Poller(
            function,
            client,
            queue_url=self.outputs[f"{trigger.queue}Ref"],
            queue_arn=self.outputs[f"{trigger.queue}Arn"],
            batch_size=trigger.batch_size,
            concurrency=int(limit),
            reports_failures=trigger.reports_failures,
        )

    def _code(self, spec: FunctionSpec) -> Code:
        folder = self._folder(spec)
        return Code(
            name=spec.name,
            handler=spec.handler,
            folder=folder,
            path=(str(folder), str(self._project)) if self._settings.from_source else (str(folder),),
            isolated=not self._settings.from_source,
            timeout_s=self._timeout_s(spec),
            memory_mb=spec.memory_mb,
            environment={
                **{name: self.outputs[output] for name, output in spec.environment.items()},
                "AWS_REGION": REGION,
                "AWS_DEFAULT_REGION": REGION,
                "AWS_ENDPOINT_URL": self.aws.url,
                **self._settings.environment,
            },
        )

    def _sandbox(self, code: Code, key_id: str) -> Sandbox:
        log = self._settings.logs / f"{key_id}.log" if self._settings.logs is not None else None
        if self._plain:
            return PlainSandbox(code, key_id, log, aws=self.aws)
        return EmulatorSandbox(
            code, key_id, log, emulator=self._emulator, runtime=self._runtime, aws=self.aws
        )


def _check_names(what: str, given: Mapping[str, object], known: Mapping[str, object]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise UsageError(
            f"the template has no {what} {', '.join(unknown)}", remedy=f"It has {', '.join(sorted(known))}"
        )
