"""Which threads of a workflow are running between their verbs."""

from __future__ import annotations

import threading

from durable_core.plain_code import PlainCode


def test_a_thread_runs_from_its_beginning_to_its_end_but_for_its_verbs() -> None:
    code, thread = PlainCode(), threading.Thread()
    assert not code.is_running()
    code.begins(thread)
    assert code.is_running()
    code.enters(thread)
    assert not code.is_running()
    code.leaves(thread)
    assert code.is_running()
    code.ends(thread)
    assert not code.is_running()


def test_code_is_running_while_any_thread_is() -> None:
    code, one, other = PlainCode(), threading.Thread(), threading.Thread()
    code.begins(one)
    code.begins(other)
    code.enters(one)
    assert code.is_running()
    code.enters(other)
    assert not code.is_running()
    code.ends(other)
    assert not code.is_running()
    code.leaves(one)
    assert code.is_running()


def test_threads_that_the_workflow_made_by_itself_do_not_count() -> None:
    code, known, own = PlainCode(), threading.Thread(), threading.Thread()
    code.begins(known)
    code.enters(own)
    assert code.is_running()
    code.enters(known)
    code.leaves(own)
    assert not code.is_running()
