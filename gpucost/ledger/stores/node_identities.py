"""Which machine of a cloud each node is, as sources say it (``spec.providerID``): invoices name machines.

``NodeIdentities`` is the part of the ledger's facade. Rows are only ever added: nodes go, and their invoices
come later. A node's name may come back on another machine, so a node may have several.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select

from gpucost.attribution.usage_lines import storable_text
from gpucost.domain.rates import NodeIdentity
from gpucost.domain.scope import EVERYTHING, Scope
from gpucost.ledger.db.database import LedgerDatabase
from gpucost.ledger.db.dimensions import in_clusters, insert_new
from gpucost.ledger.db.store_tables import NODE_IDENTITY
from gpucost.ledger.db.stored_values import check_text

N = NODE_IDENTITY.c
_COLUMNS = (N.cluster, N.node, N.provider_id)


class NodeIdentities:
    """A part of ``Ledger``."""

    _database: LedgerDatabase

    def identify_nodes(self, cluster: str, found: Collection[tuple[str, str]]) -> int:
        """Keep which machine each node is: pairs of a node and its provider id. Returns how many are new.
        Names are cut to what a database can store. Raises InputError for a cluster without a name."""
        check_text("cluster", cluster, empty=False)
        wanted = {(storable_text(node), storable_text(machine)) for node, machine in found}
        with self._database.read() as connection:
            known = connection.execute(select(N.node, N.provider_id).where(N.cluster == cluster)).all()
        new = sorted(pair for pair in wanted - {(node, machine) for node, machine in known} if all(pair))
        if new:
            rows = [{"cluster": cluster, "node": node, "provider_id": machine} for node, machine in new]
            with self._database.write(cluster) as connection:
                connection.execute(insert_new(connection, NODE_IDENTITY), rows)
        return len(new)

    def node_identities(self, *, scope: Scope = EVERYTHING) -> tuple[NodeIdentity, ...]:
        """Every machine that a node was, of the scope's clusters, sorted. Whoever is bound to teams is told
        of none: nodes are the platform's."""
        if scope.teams is not None:
            return ()
        wanted = select(*_COLUMNS).where(*in_clusters(scope, N.cluster)).order_by(*_COLUMNS)
        with self._database.read() as connection:
            return tuple(NodeIdentity(*row) for row in connection.execute(wanted))
