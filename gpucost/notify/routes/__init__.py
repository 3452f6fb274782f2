"""Routing: ``decide`` turns notices and the conversations so far into posts. Pure.

What may live here: rules, and one round over them. What must not: settings as they are written, clocks,
storage. Begin with ``decision.decide``.

    rules     routes: which notices go to which channels, with their quiet hours, cool-down and escalation
    decision  one round: what is due now, and what is held back and why
"""

from gpucost.notify.routes.decision import HeldNotice as HeldNotice
from gpucost.notify.routes.decision import HoldReason as HoldReason
from gpucost.notify.routes.decision import RoutingDecision as RoutingDecision
from gpucost.notify.routes.decision import decide as decide
from gpucost.notify.routes.rules import RoutingRules as RoutingRules
