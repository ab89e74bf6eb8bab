"""What the suite is told of Onehop: what it does beyond the least that each dialect does, and what it does not, with the reasons."""

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

OPEN = """
    aggregate_order_by autocommit boolean_col_expressions create_or_replace_view create_table_as create_temp_table_as ctes
    ctes_with_values date_historic datetime_historic datetime_interval datetime_literals datetime_timezone
    datetime_timezone_historic delete_from except_ fetch_expression fetch_first fetch_no_order_by has_temp_table
    implicit_default_schema infinity_floats intersect isolation_level mod_operator_as_percent_sign nullsordering
    order_by_label_with_expression precision_numerics_enotation_small precision_numerics_many_significant_digits
    precision_numerics_retains_significant_digits regexp_match regexp_replace savepoints supports_bitwise_and
    supports_bitwise_not supports_bitwise_or supports_bitwise_shift supports_bitwise_xor supports_distinct_on
    table_ddl_if_exists table_value_constructor temp_table_names timestamp_microseconds tuple_in unicode_ddl update_from views
    window_functions window_range window_range_numeric
"""

CLOSED = {
    "no schema but public": "schemas schema_reflection",
    "no sequences: no key is made by the server": "sequences sequences_optional autoincrement_insert autoincrement_without_sequence "
    "implements_get_lastrowid empty_inserts empty_inserts_executemany",
    "no primary keys": "primary_key_constraint_reflection duplicate_key_raises_integrity_error reflects_pk_names",
    "no foreign keys": "foreign_key_constraint_reflection on_update_cascade recursive_fk_cascade",
    "no other constraints": "unique_constraint_reflection named_constraints implicitly_named_constraints",
    "no indexes": "index_reflection temp_table_reflect_indexes indexes_with_ascdesc reflect_indexes_with_ascdesc",
    "tables do not store times of day": "time time_microseconds time_implicit_bound",
    "tables do not store bytes": "binary_literals binary_comparisons",
    "no cursors by DECLARE": "server_side_cursors",
}


def opened(_):
    return exclusions.open()


def closed(reason):
    return property(lambda _: exclusions.closed(reason))


class Requirements(SuiteRequirements):
    pass


for name in OPEN.split():
    setattr(Requirements, name, property(opened))
for reason, names in CLOSED.items():
    for name in names.split():
        setattr(Requirements, name, closed(reason))
