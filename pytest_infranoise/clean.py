"""Removing what dead runs left on an engine, and images that were built here; never what a living run holds.

A run is alive as long as one of its processes holds its lock in the ledger. Sessions with another ledger, on
another host or in a container of their own, hold theirs where nobody here can see them: what they made stays,
unless somebody names the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_infranoise.host import Ledger
from pytest_infranoise.prepare import HOST_LABEL
from pytest_infranoise.prepare import RUN_LABEL
from pytest_infranoise.prepare import is_ours
from pytest_infranoise.prepare import remove_if_dead
from pytest_infranoise.sandboxes.docker import DockerBackend
from pytest_infranoise.sandboxes.images import BuiltImage
from pytest_infranoise.units import format_memory
from pytest_infranoise.units import plural


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What is on an engine, by run: what dead runs left, what living ones hold, and what nobody here can judge.

    Numbers are of containers and networks. ``elsewhere`` names the places of what cannot be judged.
    """

    dead: Mapping[str, int]
    living: Mapping[str, int]
    elsewhere: Mapping[str, str]


def leftovers(backend: DockerBackend, ledger: Ledger) -> Leftovers:
    """Return what carries our label on the engine.

    Raises:
        SandboxError: the engine does not answer.
    """
    found = backend.labelled(RUN_LABEL)  # before the locks are looked at: a run that begins now is not in it
    place, alive = ledger.place, ledger.living_runs()
    ours = {labels[RUN_LABEL] for labels in found.values() if is_ours(labels, place)}
    numbers = Counter(labels[RUN_LABEL] for labels in found.values())
    # A network may not say whose it is; it goes with its run's containers.
    elsewhere = {labels[RUN_LABEL]: labels.get(HOST_LABEL, "") for labels in found.values()}
    return Leftovers(
        dead={run: number for run, number in sorted(numbers.items()) if run in ours and run not in alive},
        living={run: number for run, number in sorted(numbers.items()) if run in alive},
        elsewhere={run: host for run, host in sorted(elsewhere.items()) if run not in ours and run not in alive},
    )


def clean(
    backend: DockerBackend, ledger: Ledger, say: Callable[[str], None], *, images: bool, dry_run: bool
) -> bool:
    """Remove what dead runs left, and with ``images`` what no living one needs; whether all of it is gone.

    Raises:
        SandboxError: the engine does not answer.
    """
    before = backend.disk_use()
    found = leftovers(backend, ledger)
    whole = True
    for run, number in found.dead.items():
        if dry_run:
            say(f"would remove {plural(number, 'container or network')} of run {run}, which is not alive")
            continue
        whole = _remove(backend, ledger, run, number, say, ", which is not alive") and whole
    for run, number in found.living.items():
        say(f"left alone: {number} of run {run}, which is alive")
    for run, host in found.elsewhere.items():
        say(
            f"left alone: run {run} was started elsewhere ({host or 'it does not say where'}); clean up there, or "
            f"with --run {run} when it is dead for certain"
        )
    if not any((found.dead, found.living, found.elsewhere)):
        say("no container or network of a run is left")
    if images:
        say(_clean_images(backend, ledger, found, dry_run=dry_run))
    say(_disk(before, before if dry_run else backend.disk_use()))
    return whole


def clean_run(
    backend: DockerBackend, ledger: Ledger, say: Callable[[str], None], run: str, *, dry_run: bool
) -> bool:
    """Remove what one run left, wherever it was started, unless it is seen to live; whether all of it is gone.

    For runs whose ledger is gone for good, or is where nobody here can see it: whoever names one answers for it
    that it is dead.

    Raises:
        SandboxError: the engine does not answer.
    """
    found = backend.labelled(f"{RUN_LABEL}={run}")
    if not found:
        say(f"no container or network of run {run} is left")
        return True
    if run in ledger.living_runs():
        say(f"left alone: {len(found)} of run {run}, which is alive")
        return False
    place = ledger.place
    hosts = sorted({labels.get(HOST_LABEL, "") for labels in found.values() if not is_ours(labels, place)})
    if hosts:
        where = ", ".join(filter(None, hosts)) or "it does not say where"
        say(f"run {run} was started elsewhere ({where}): whether it lives cannot be seen here, so your word counts")
    if dry_run:
        say(f"would remove {plural(len(found), 'container or network')} of run {run}")
        return True
    return _remove(backend, ledger, run, len(found), say)


def _remove(
    backend: DockerBackend, ledger: Ledger, run: str, number: int, say: Callable[[str], None], because: str = ""
) -> bool:
    """Remove what a dead run left; whether all of it is gone, or is needed again."""
    gone = remove_if_dead(backend, ledger, run)
    if gone is None:
        say(f"left alone: {number} of run {run}, which has been resumed")
        return True
    left = len(backend.labelled(f"{RUN_LABEL}={run}"))
    rest = f"; {left} cannot be removed" if left else ""
    say(f"removed {gone - left} of {gone} of run {run}{because}{rest}")
    return not left


def _clean_images(backend: DockerBackend, ledger: Ledger, found: Leftovers, *, dry_run: bool) -> str:
    built = backend.built_images()
    if found.elsewhere:
        return f"images: all {len(built)} kept, because runs from elsewhere may need them"
    gone = [image for image in built if _remove_unless_held(backend, ledger, image, dry_run=dry_run)]
    size, kept = format_memory(sum(image.size for image in gone)), len(built) - len(gone)
    word = "would remove" if dry_run else "removed"
    rest = f"; {kept} kept, which a living run or a container may need" if kept else ""
    return f"images: {word} {len(gone)} that were built for tasks ({size} with what they share){rest}"


def _remove_unless_held(backend: DockerBackend, ledger: Ledger, image: BuiltImage, *, dry_run: bool) -> bool:
    # A session joins the ledger before it looks for its images: none can, and find this one, while it goes.
    with ledger.closed():
        held, unknown = ledger.held_images()
        if unknown or image.id in held:
            return False
        return dry_run or backend.remove_image(image)


def _disk(before: int | None, after: int | None) -> str:
    if before is None or after is None:
        return "the engine does not say what its images and containers take"
    if before == after:
        return f"the engine's images and containers take {format_memory(after)}"
    return f"the engine's images and containers took {format_memory(before)}, and take {format_memory(after)} now"
