"""The contract of methods: what every method keeps, how laws are looked at, and the probes that do it."""

from fedsolve.checks.contract import CHECKS as CHECKS
from fedsolve.checks.contract import check_method as check_method
from fedsolve.checks.contract import checks_for as checks_for
from fedsolve.checks.probes import CheckError as CheckError
from fedsolve.checks.probes import sample_data as sample_data
from fedsolve.checks.probes import sample_federation as sample_federation
