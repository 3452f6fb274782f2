"""What the API server would refuse of an object, before it is used.

Here are the published schemas (``schemas``), and by topic the API server's own rules where the schemas say
nothing. Rules are those of Kubernetes 1.36 (kubernetes v1.36.3: pkg/apis/core/validation,
pkg/apis/batch/validation, pkg/apis/apps/validation; apimachinery v0.36.3: pkg/util/validation) with the
defaults of the same release and its feature gates as they are unless set.
"""
