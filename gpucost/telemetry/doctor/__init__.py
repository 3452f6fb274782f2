"""What a Prometheus holds that gpucost could use: the questions of ``gpucost doctor``, and no judgement.

``probing`` puts the facts together (gpucost.contract.probe), out of some twenty queries that stay cheap on a
server of millions of series: what is wide is asked only of a few pods and nodes. What one question cannot
find out is not known; the others are asked all the same.
"""
