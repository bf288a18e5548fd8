// Errors as values. If a user, a file, a plug-in or the network can cause an error, functions
// return Status or Result<T>; our own bugs end in OFSDP_CHECK, which aborts.
//
// A Status has a kind, which decides the exit status:
//   kInput  the command or its input is wrong          exit 2
//   kFault  the run failed (disk, dead rank, NaN, ...) exit 1
//   kPeer   another rank has reported its error        exit with its status, nothing printed
// The message is one line that names the subject (file, node, flag, unit, rank), the expected value
// and the found one; control characters in values are escaped (text.h).
//
// A success holds no memory, so returning one never allocates.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "kernels/base/namespaces.h"
#include "kernels/base/text.h"

namespace ofsdp::base {

enum class ErrorKind { kInput, kFault, kPeer };

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(ErrorKind kind, std::string message)
      : error_(std::make_unique<Error>(Error{kind, std::move(message)})) {}

  bool ok() const { return error_ == nullptr; }
  // REQUIRES: !ok().
  ErrorKind kind() const { return error_->kind; }
  const std::string& message() const { return error_->message; }

  // Puts "prefix: " before an error's message; an ok status stays ok.
  Status with_prefix(std::string_view prefix) &&;

 private:
  struct Error {
    ErrorKind kind;
    std::string message;
  };
  std::unique_ptr<Error> error_;
};

inline Status ok_status() { return {}; }

Status formatted_error(ErrorKind kind, std::string_view format,
                       std::initializer_list<FormatArgument> values);

template <typename... Args>
Status input_error(FormatOf<Args...> format, const Args&... values) {
  return formatted_error(ErrorKind::kInput, format.text(), {FormatArgument(values)...});
}

template <typename... Args>
Status fault(FormatOf<Args...> format, const Args&... values) {
  return formatted_error(ErrorKind::kFault, format.text(), {FormatArgument(values)...});
}

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}         // NOLINT: implicit on purpose
  Result(Status status) : state_(std::move(status)) {}  // NOLINT: implicit on purpose

  bool ok() const { return state_.index() == 0; }
  Status status() && { return ok() ? Status{} : std::get<1>(std::move(state_)); }
  const Status& error() const { return std::get<1>(state_); }
  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }

 private:
  std::variant<T, Status> state_;
};

#define OFSDP_CONCAT_INNER(a, b) a##b
#define OFSDP_CONCAT(a, b) OFSDP_CONCAT_INNER(a, b)

// Returns from the calling function if `expression` is an error.
#define OFSDP_RETURN_IF_ERROR(expression)        \
  do {                                           \
    ::ofsdp::Status ofsdp_status = (expression); \
    if (!ofsdp_status.ok()) return ofsdp_status; \
  } while (false)

// OFSDP_ASSIGN_OR_RETURN(auto x, f()) sets x to f()'s value, or returns f()'s error from the
// calling function.
#define OFSDP_ASSIGN_OR_RETURN(target, expression) \
  OFSDP_ASSIGN_OR_RETURN_INNER(OFSDP_CONCAT(ofsdp_result_, __LINE__), target, expression)
#define OFSDP_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                    \
  if (!result.ok()) return std::move(result).status();           \
  target = *std::move(result)

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);

// For our own bugs only: OFSDP_CHECK(condition) or OFSDP_CHECK(condition, "format", values...).
#define OFSDP_CHECK(condition, ...)                                            \
  do {                                                                         \
    if (!(condition)) {                                                        \
      ::ofsdp::base::check_failed(__FILE__, __LINE__, #condition,              \
                                  ::ofsdp::base::format_text("" __VA_ARGS__)); \
    }                                                                          \
  } while (false)

// Checks input from a user, a file, a plug-in or the network, in a function that returns Status or
// Result<T>:
//
//   OFSDP_REJECT_IF(count > kMax, "{}: expected at most {} ranks, found {}", path, kMax, count);

// Returns input_error(format, values...) from the calling function if `condition` is true.
#define OFSDP_REJECT_IF(condition, ...)                            \
  do {                                                             \
    if (condition) return ::ofsdp::base::input_error(__VA_ARGS__); \
  } while (false)

// As OFSDP_REJECT_IF, with fault(format, values...).
#define OFSDP_FAULT_IF(condition, ...)                       \
  do {                                                       \
    if (condition) return ::ofsdp::base::fault(__VA_ARGS__); \
  } while (false)

// Returns the value, or the error with "prefix: " before the message.
template <typename T>
Result<T> prefixed(const std::string& prefix, Result<T> result) {
  if (result.ok()) return result;
  return std::move(result).status().with_prefix(prefix);
}

}  // namespace ofsdp::base
