"""Devices of shipped profiles by their row of device_specs.csv."""

from servegym.errors import ProfileError
from servegym.latency_models.building.specifications import Device
from servegym.latency_models.building.tables import read_table

DEVICE_SPECS = {
    "table": "device_specs", "repository": "Ascend/msmodeling", "commit": "84fec853d670", "licence": "facts",
}  # fmt: skip


def device(name: str) -> Device:
    """The device whose row in device_specs.csv begins with `name`. Raises ProfileError where there is none."""
    table = read_table("device_specs", ".csv").set_index("device")
    names = [row for row in table.index if row.startswith(name)]
    if not names:
        raise ProfileError(f"device_specs.csv has no device '{name}'; it has {', '.join(table.index)}")
    row = table.loc[names[0]]
    # "376 fp16 / 353.9 bf16": the last number is that of bfloat16, in which the models are.
    tera_flop = [word for word in str(row["fp16_dense_tflops"]).split() if word.replace(".", "").isdigit()][-1]
    link = str(row["intra_node_link_gb_s"]).split()[0]
    return Device(
        peak_flop_per_s=float(tera_flop) * 1e12,
        memory_gib=int(row["hbm_gib"]),
        memory_bytes_per_s=float(str(row["mem_bw_tb_s"]).split()[0]) * 1e12,
        link_bytes_per_s=0.0 if link == "nan" else float(link) * 1e9,
    )
