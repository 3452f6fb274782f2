"""Who is told what, when: pure. ``decide`` turns notices and what was told so far into posts.

    quiet     hours in which only what is critical is told
    rules     routes: which notices go to which channels, with their quiet hours, cool-down and escalation
    decide    one round: what is due now, and what is held back and why

What must not live here: settings as they are written, clocks, storage.
"""

from gpucost.notify.routes.decision import HeldNotice as HeldNotice
from gpucost.notify.routes.decision import HoldReason as HoldReason
from gpucost.notify.routes.decision import RoutingDecision as RoutingDecision
from gpucost.notify.routes.decision import decide as decide
from gpucost.notify.routes.rules import RoutingRules as RoutingRules
