#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Early return on a failed absl::Status or absl::StatusOr.
#define STRATA_RETURN_IF_ERROR(expr)                                                    \
  do {                                                                                  \
    if (absl::Status strata_status = (expr); !strata_status.ok()) return strata_status; \
  } while (false)

#define STRATA_STATUS_CONCAT_INNER(a, b) a##b
#define STRATA_STATUS_CONCAT(a, b) STRATA_STATUS_CONCAT_INNER(a, b)
#define STRATA_ASSIGN_OR_RETURN(lhs, expr) \
  STRATA_ASSIGN_OR_RETURN_IMPL(STRATA_STATUS_CONCAT(strata_statusor_, __LINE__), lhs, expr)
// `lhs` may declare a variable, so it cannot stand in parentheses.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define STRATA_ASSIGN_OR_RETURN_IMPL(statusor, lhs, expr)  \
  auto statusor = (expr);                                  \
  if (!statusor.ok()) return std::move(statusor).status(); \
  lhs = std::move(statusor).value()
// NOLINTEND(bugprone-macro-parentheses)
