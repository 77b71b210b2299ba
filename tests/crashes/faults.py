"""Faults of engine and journal that crash points find: many are those that the search of interleavings finds.

Each is a change of text in one module. The scenario is the act in which it shows.
"""

from __future__ import annotations

from dataclasses import replace

from tests.concurrency.faults import FAULTS as SEARCHED
from tests.concurrency.faults import Fault

_ACT_OF = {
    "begin-without-cas": "steps",
    "commit-without-attempt": "steps",
    "commit-forgets-own": "steps",
    "acquire-forgets-own": "waits",
    "create-forgets-own": "steps",
    "leave-forgets-own": "steps",
    "leave-without-fence": "waits",
    "at-most-once-runs-again": "steps",
    "notdone-is-trusted": "steps",
    "replaced-attempt-takes-a-new-key": "steps",
    "prune-header-first": "prune",
    "prune-stuck": "prune",
    "segment-claim-without-empty": "maps",
    "segment-over-anything": "maps",
    "segment-forgets-own": "maps",
    "chunk-claim-without-empty-segment": "chunks",
    "renew-without-fence": "renewals",
    "map-commits-before-its-items": "maps",
    "suspend-without-count": "signals",
    "signal-without-count": "signals",
    "send-forgets-own": "waits",
    "event-deleted-when-taken": "waits",
}

_OF_CRASHES = (
    Fault(
        "pointer-before-blob",
        "engine/values.py",
        "        await ask(self.blobs.put, ref, sealed.data)\n        return Stored(",
        "        import asyncio\n\n"
        "        async def later() -> None:\n"
        "            await asyncio.sleep(0)\n"
        "            await asyncio.sleep(0)\n"
        "            await ask(self.blobs.put, ref, sealed.data)\n\n"
        "        self.late = asyncio.ensure_future(later())\n"
        "        self.late.add_done_callback(lambda ended: ended.cancelled() or ended.exception())\n"
        "        return Stored(",
        scenario="steps",
    ),
    Fault(
        "started-after-the-body",
        "engine/steps.py",
        "        row = await self._attempts.begin(attempt, seen, guarded=call.step.options.is_guarded)\n"
        "        if row is not attempt:\n"
        "            return row, NOTHING\n"
        "        if attempt.crashes",
        "        from durable_core.engine import bodies\n"
        "        from durable_core.engine.attempts import _info\n\n"
        "        token = here.set(_info(attempt))\n"
        "        value = await bodies.run(call.step, call.args, call.kwargs, self.drive)\n"
        "        here.reset(token)\n"
        "        row = await self._attempts.begin(attempt, seen, guarded=call.step.options.is_guarded)\n"
        "        if row is not attempt:\n"
        "            return row, NOTHING\n"
        "        return await self._attempts._commit(call, attempt, value)\n"
        "        if attempt.crashes",
        scenario="steps",
    ),
    Fault(
        "crash-counted-on-hand-over",
        "engine/step_records.py",
        "    elif overran(seen) or (is_suspect(seen) and drive.crashed(seen)):\n",
        "    elif is_in_doubt(seen):\n",
        scenario="steps",
    ),
    Fault(
        "state-pointer-before-blob",
        "checkpointer_blocking.py",
        "            record = self._spilled.put(record)\n"
        "        try:\n            seq = self.kept.append(record, lease)\n",
        "            from durable_core.blobs.base import blob_ref\n\n"
        "            ref = blob_ref(record.session_id, record.id, record.state, 'sessions')\n"
        "            spilled, record = record, record._replace(state=None, state_ref=ref)\n"
        "        try:\n            seq = self.kept.append(record, lease)\n"
        "            if record.state_ref is not None:\n"
        "                self._spilled.put(spilled)\n",
        scenario="checkpoints",
    ),
    Fault(
        "outcome-lost-on-the-way-out",
        "engine/attempts.py",
        "        await self.write(record)\n        self.told_committed(record)\n        return record",
        "        self.told_committed(record)\n        return record",
        scenario="steps",
    ),
    Fault(
        "sweep-sends-for-nobody",
        "aws/sweep.py",
        "await self._sandbox.dispatch.drive_all(wanted)",
        "await self._sandbox.dispatch.drive_all([])",
        scenario="functions",
    ),
    Fault(
        "late-renewal-gives-up-at-once",
        "engine/drive.py",
        "        await self.ask(asyncio.to_thread, self.tools.renewals.renew_now, self.held)\n",
        "        try:\n"
        "            await asyncio.to_thread(self.tools.renewals.renew_now, self.held)\n"
        "        except DurableError as error:\n"
        "            self.stop(error)\n"
        "            raise\n",
        scenario="renewals",
    ),
)

FAULTS = (
    *_OF_CRASHES,
    *(replace(fault, scenario=_ACT_OF[fault.name]) for fault in SEARCHED if fault.name in _ACT_OF),
)

OFTEN = (
    "pointer-before-blob",
    "started-after-the-body",
    "crash-counted-on-hand-over",
    "state-pointer-before-blob",
    "begin-without-cas",
    "commit-without-attempt",
    "commit-forgets-own",
    "create-forgets-own",
    "at-most-once-runs-again",
    "replaced-attempt-takes-a-new-key",
    "prune-header-first",
    "prune-stuck",
    "segment-claim-without-empty",
    "segment-over-anything",
    "suspend-without-count",
    "event-deleted-when-taken",
    "sweep-sends-for-nobody",
    "renew-without-fence",
    "late-renewal-gives-up-at-once",
)
"""Those that are planted at every run of the tests; all of them at full scale."""
