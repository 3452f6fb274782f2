"""GPUs, units, shares: every row of the MIG tables, every spelling of a label."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gpucost.domain.errors import InputError
from gpucost.domain.gpu import (
    DEFAULT_RESOURCES,
    KNOWN_MODELS,
    MIG_TABLES,
    GpuProduct,
    ResourceCatalog,
    ShareBasis,
    ShareMethod,
    mig_share,
    parse_product,
    shared_resource,
)

# NVIDIA's table: compute slices of 7, memory slices of 8, most instances; and each GPU's names for it.
PROFILES: list[tuple[int, int, int, dict[str, str]]] = [
    (1, 1, 7, {"A100-40GB": "1g.5gb", "A100-80GB": "1g.10gb", "A800-80GB": "1g.10gb", "H100": "1g.10gb",
               "H100-PCIe": "1g.10gb", "H100-NVL": "1g.12gb", "H200": "1g.18gb", "B200": "1g.23gb"}),
    (1, 2, 4, {"A100-40GB": "1g.10gb", "A100-80GB": "1g.20gb", "A800-80GB": "1g.20gb", "H100": "1g.20gb",
               "H100-PCIe": "1g.20gb", "H100-NVL": "1g.24gb", "H200": "1g.35gb", "B200": "1g.45gb"}),
    (2, 2, 3, {"A100-40GB": "2g.10gb", "A100-80GB": "2g.20gb", "A800-80GB": "2g.20gb", "H100": "2g.20gb",
               "H100-PCIe": "2g.20gb", "H100-NVL": "2g.24gb", "H200": "2g.35gb", "B200": "2g.45gb"}),
    (3, 4, 2, {"A100-40GB": "3g.20gb", "A100-80GB": "3g.40gb", "A800-80GB": "3g.40gb", "H100": "3g.40gb",
               "H100-PCIe": "3g.40gb", "H100-NVL": "3g.47gb", "H200": "3g.71gb", "B200": "3g.90gb"}),
    (4, 4, 1, {"A100-40GB": "4g.20gb", "A100-80GB": "4g.40gb", "A800-80GB": "4g.40gb", "H100": "4g.40gb",
               "H100-PCIe": "4g.40gb", "H100-NVL": "4g.47gb", "H200": "4g.71gb", "B200": "4g.90gb"}),
    (7, 8, 1, {"A100-40GB": "7g.40gb", "A100-80GB": "7g.80gb", "A800-80GB": "7g.80gb", "H100": "7g.80gb",
               "H100-PCIe": "7g.80gb", "H100-NVL": "7g.94gb", "H200": "7g.141gb", "B200": "7g.180gb"}),
]  # fmt: skip
SEVENTHS = [
    (model, profile, compute, memory, most)
    for compute, memory, most, names in PROFILES
    for model, profile in names.items()
]
A30 = [("1g.6gb", 1, 4), ("2g.12gb", 2, 2), ("4g.24gb", 4, 1)]


@pytest.mark.parametrize(("model", "profile", "compute", "memory", "most"), SEVENTHS)
def test_a_slice_of_a_seven_slice_board(
    model: str, profile: str, compute: int, memory: int, most: int
) -> None:
    by_compute, by_memory = Fraction(compute, 7), Fraction(memory, 8)
    assert mig_share(model, profile) == by_compute
    assert mig_share(model, profile, ShareBasis.MEMORY) == by_memory
    assert most * max(by_compute, by_memory) <= 1
    for media in (f"{profile}+me", f"{profile}.me"):
        assert mig_share(model, media) == by_compute
        assert mig_share(model, media, ShareBasis.MEMORY) == by_memory


@pytest.mark.parametrize(("profile", "slices", "most"), A30)
@pytest.mark.parametrize("basis", list(ShareBasis))
def test_a_slice_of_an_a30(profile: str, slices: int, most: int, basis: ShareBasis) -> None:
    assert mig_share("A30", profile, basis) == Fraction(slices, 4)
    assert most * slices == 4


def test_the_tables_hold_nothing_else() -> None:
    listed = {(model, profile) for model, profile, *_ in SEVENTHS} | {("A30", row[0]) for row in A30}
    held = {(model, profile) for model, table in MIG_TABLES.items() for profile in table.memory_by_profile}
    assert held == listed


def test_a_compute_instance_counts_its_part_of_the_gpu_instance() -> None:
    assert mig_share("H200", "1c.3g.71gb") == Fraction(1, 7)
    assert mig_share("H200", "1c.3g.71gb", ShareBasis.MEMORY) == Fraction(1, 3) * Fraction(4, 8)
    with pytest.raises(InputError, match="no larger than"):
        mig_share("H200", "4c.3g.71gb")


@pytest.mark.parametrize(
    ("model", "profile"),
    [("H100", "1g.5gb"), ("T4", "1g.10gb"), ("A100-40GB", "3g.40gb"), ("H100", ""), ("H100", "1g.10gb; x"),
     ("B300", "1g.34gb"), ("H100", "10g.10gb")],
)  # fmt: skip
def test_a_profile_of_another_board_is_refused(model: str, profile: str) -> None:
    with pytest.raises(InputError, match="MIG profile"):
        mig_share(model, profile)


@pytest.mark.parametrize(
    ("profile", "compute", "memory"),
    [
        ("1g.10gb", Fraction(1, 7), None),  # 2/8 of the memory of an A100 of 40 GB, else 1/8
        ("1g.10gb.me", Fraction(1, 7), None),
        ("3g.40gb", Fraction(3, 7), Fraction(4, 8)),
        ("1c.3g.71gb", Fraction(1, 7), Fraction(1, 6)),
        ("2g.12gb", Fraction(1, 2), Fraction(1, 2)),
        ("1g.24gb", None, None),  # 1/7 of an H100 NVL, 1/4 of an RTX PRO 6000
        ("1g.99gb", None, None),
        ("4c.3g.71gb", None, None),
    ],
)
def test_of_a_board_that_nothing_names_a_slice_is_what_it_is_of_all_that_have_it(
    profile: str, compute: Fraction | None, memory: Fraction | None
) -> None:
    for basis, share in ((ShareBasis.COMPUTE, compute), (ShareBasis.MEMORY, memory)):
        if share is not None:
            unit = ResourceCatalog().unit(f"nvidia.com/mig-{profile}", "", basis=basis)
            assert (unit.share, unit.model) == (share, "")
            continue
        with pytest.raises(InputError, match=f"{profile} on a GPU of an unknown model"):
            mig_share("", profile, basis)


LABELS = [
    ("Tesla-V100-SXM2-16GB", "V100-16GB"),
    ("Tesla V100-SXM2-32GB", "V100-32GB"),
    ("Tesla-V100-PCIE-16GB", "V100-16GB"),
    ("Tesla-T4", "T4"),
    ("NVIDIA-A10G", "A10G"),
    ("A10", "A10"),
    ("NVIDIA L4", "L4"),
    ("NVIDIA-L40S", "L40S"),
    ("NVIDIA-A30", "A30"),
    ("A100-SXM4-40GB", "A100-40GB"),
    ("NVIDIA-A100-PCIE-40GB", "A100-40GB"),
    ("NVIDIA-A100-SXM4-80GB", "A100-80GB"),
    ("NVIDIA A100 80GB PCIe", "A100-80GB"),
    ("NVIDIA-A800-SXM4-80GB", "A800-80GB"),
    ("NVIDIA-H100-80GB-HBM3", "H100"),
    ("nvidia-h100-80gb-hbm3", "H100"),
    ("NVIDIA-H100-PCIe", "H100-PCIe"),
    ("NVIDIA-H100-NVL", "H100-NVL"),
    ("NVIDIA-H200", "H200"),
    ("NVIDIA-GH200-96GB-HBM3", "GH200"),
    ("NVIDIA-B200", "B200"),
    ("NVIDIA B300 SXM6 AC", "B300"),
    ("NVIDIA-GB200", "GB200"),
    ("NVIDIA-GB200-192GB-HBM3e", "GB200"),
    ("NVIDIA GB300 NVL", "GB300"),
    ("AMD Instinct MI300X OAM", "MI300X"),
    ("AMD_Instinct_MI300X_OAM", "MI300X"),
]


@pytest.mark.parametrize(("label", "model"), LABELS)
@pytest.mark.parametrize("suffix", ["", "-SHARED", "-MIG-1g.10gb", "-mig-1g.10gb-shared"])
def test_labels_name_the_board_the_profile_and_the_sharing(label: str, model: str, suffix: str) -> None:
    shared, profile = suffix.lower().endswith("shared"), "1g.10gb" if "1g" in suffix else ""
    assert parse_product(label + suffix) == GpuProduct(model, profile, shared)


@pytest.mark.parametrize("model", sorted(KNOWN_MODELS))
def test_a_canonical_name_names_itself(model: str) -> None:
    assert parse_product(model).model == parse_product(model.lower()).model == model


@pytest.mark.parametrize("label", ["GRID-A100-10C", "NVIDIA-RTX-9999", "H1000", "Gaudi3"])
def test_an_unknown_board_keeps_its_label(label: str) -> None:
    assert parse_product(label) == GpuProduct(label, "", False)


H100 = "NVIDIA-H100-80GB-HBM3"


@pytest.mark.fault(36)
@pytest.mark.parametrize(
    ("resource", "product", "replicas", "share"),
    [
        ("nvidia.com/gpu", H100, 1, Fraction(1)),
        ("nvidia.com/gpu", f"{H100}-SHARED", 7, Fraction(1, 7)),
        ("nvidia.com/gpu.shared", H100, 4, Fraction(1, 4)),
        ("nvidia.com/gpu", f"{H100}-MIG-1g.10gb", 1, Fraction(1, 7)),
        ("nvidia.com/gpu", f"{H100}-MIG-2g.20gb-SHARED", 3, Fraction(2, 21)),
        ("nvidia.com/mig-3g.40gb", H100, 1, Fraction(3, 7)),
        ("nvidia.com/mig-1g.10gb.me", H100, 1, Fraction(1, 7)),
        ("nvidia.com/mig-1g.10gb.shared", H100, 2, Fraction(1, 14)),
        ("nvidia.com/gpucores", H100, 1, Fraction(1, 100)),
        ("amd.com/gpu", "AMD-Instinct-MI300X-OAM", 1, Fraction(1)),
    ],
)
def test_one_unit_of_every_kind_of_sharing(
    resource: str, product: str, replicas: int, share: Fraction
) -> None:
    assert ResourceCatalog().unit(resource, product, replicas).share == share


def test_the_basis_of_a_unit_is_a_choice() -> None:
    unit = ResourceCatalog().unit("nvidia.com/mig-3g.40gb", H100, basis=ShareBasis.MEMORY)
    assert (unit.share, unit.profile, unit.model) == (Fraction(1, 2), "3g.40gb", "H100")


@pytest.mark.parametrize(
    ("resource", "product", "replicas", "field"),
    [
        ("cpu", H100, 1, "resource"),
        ("nvidia.com/gpu", H100, 0, "replicas"),
        ("nvidia.com/gpu", f"{H100}-SHARED", 1, "replicas"),
        ("nvidia.com/gpu.shared", H100, 1, "replicas"),
        ("nvidia.com/mig-9g.90gb", H100, 1, "MIG profile"),
    ],
)
def test_a_unit_that_cannot_be_measured_is_refused(
    resource: str, product: str, replicas: int, field: str
) -> None:
    with pytest.raises(InputError) as caught:
        ResourceCatalog().unit(resource, product, replicas)
    assert caught.value.field == field


def test_further_vendors_come_by_configuration() -> None:
    catalog = ResourceCatalog({**DEFAULT_RESOURCES, "example.com/npu": Fraction(1)})
    assert catalog.is_gpu("example.com/npu")
    assert catalog.is_gpu("nvidia.com/mig-1g.10gb")
    assert not ResourceCatalog().is_gpu("example.com/npu")
    assert not catalog.is_gpu("nvidia.com/mig-1g.10gb/x")


CATALOG = ResourceCatalog()


@pytest.mark.parametrize(
    ("resource", "product", "replicas", "share"),
    [
        ("amd.com/cpx_nps4", "MI300X", 1, Fraction(1, 8)),
        ("amd.com/cpx_nps1", "AMD_Instinct_MI325X_OAM", 1, Fraction(1, 8)),
        ("amd.com/cpx_nps1", "MI300A", 1, Fraction(1, 6)),
        ("amd.com/qpx_nps2", "", 1, Fraction(1, 4)),
        ("amd.com/dpx_nps2", "MI355X", 1, Fraction(1, 2)),
        ("amd.com/spx_nps1", "MI355X", 1, Fraction(1)),
        # Under the strategy ``single`` partitions are called as GPUs are.
        ("amd.com/gpu", "MI300X", 8, Fraction(1, 8)),
    ],
)
def test_partitions_of_amd(resource: str, product: str, replicas: int, share: Fraction) -> None:
    assert CATALOG.is_gpu(resource)
    assert CATALOG.unit(resource, product, replicas).share == share


@pytest.mark.parametrize(("resource", "product"), [("amd.com/cpx_nps4", ""), ("amd.com/cpx_nps4", "MI308X")])
def test_cpx_of_a_model_whose_dies_are_not_known(resource: str, product: str) -> None:
    with pytest.raises(InputError, match="CPX of MI300X"):
        CATALOG.unit(resource, product)


@pytest.mark.parametrize(
    "resource", ["amd.com/xpx_nps1", "amd.com/cpx", "amd.com/cpx_nps44", "amd.com/cpx_nps4x"]
)
def test_what_is_no_partition(resource: str) -> None:
    assert not CATALOG.is_gpu(resource)


@pytest.mark.parametrize("method", list(ShareMethod))
def test_parts_of_a_device_are_units_of_its_resource(method: ShareMethod) -> None:
    for plain, share in (("gpu.nvidia.com", Fraction(1)), ("gpu.nvidia.com/mig-1g.10gb", Fraction(1, 7))):
        resource = shared_resource(plain, method)
        assert CATALOG.is_gpu(resource)
        assert CATALOG.unit(resource, "NVIDIA-H100-80GB-HBM3", 8).share == share / 8
        with pytest.raises(InputError, match="replicas"):
            CATALOG.unit(resource, "NVIDIA-H100-80GB-HBM3")
    assert not CATALOG.is_gpu(shared_resource("cpu", method))
