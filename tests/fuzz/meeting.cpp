// A libFuzzer target: any bytes as the messages of a stranger at a meeting of ranks or launchers.
// They are read first by a Store, then as every kind of message. Nobody comes in without the
// secret, and nothing else happens. tests/fuzz/run.sh builds and runs it.
#include <sys/socket.h>

#include <cstdint>
#include <cstdlib>

#include "fsdp/comm/hosts/host_rendezvous.h"
#include "fsdp/comm/store/doorkeeper.h"
#include "runtime/cli/launch/node_messages.h"
#include "tests/support/namespaces.h"

namespace ofsdp::fsdp {
void list_fields(StoreFields& fields, HostHello& hello);
}  // namespace ofsdp::fsdp

namespace {

using namespace ofsdp;
using fsdp::from_value;

// A value that was read can be written again, and is the same.
template <typename T>
void check(const fsdp::Json& value) {
  const auto read = from_value<T>(value);
  if (!read) return;
  const auto again = from_value<T>(fsdp::to_value(*read));
  if (!again || fsdp::to_value(*again) != fsdp::to_value(*read)) std::abort();
}

void check_table(const fsdp::Json& value) {
  const auto world = static_cast<int>(value.value("hosts", fsdp::Json()).size());
  fsdp::HostTable table, again;
  if (!fsdp::read_table(value, world, table)) return;
  const fsdp::Json said = fsdp::table_value(table);
  if (!fsdp::read_table(said, world, again) || fsdp::table_value(again) != said) std::abort();
}

void check_all(const fsdp::Json& value) {
  check<fsdp::HostHello>(value);
  check_table(value);
  check<fsdp::HostHandshake>(value);
  check<fsdp::RendezvousReport>(value);
  check<fsdp::RendezvousVerdict>(value);
  check<cli::Outcome>(value);
  check<cli::Refusal>(value);
  check<cli::StopOrder>(value);
  check<cli::Turn>(value);
  (void)cli::read_hello(value);
}

void say(const uint8_t* data, size_t size) {
  static const fsdp::JobSecret secret = fsdp::JobSecret::drawn();
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  const UniqueFd stranger(ends[0]);
  fsdp::Store store(UniqueFd{ends[1]});
  fsdp::Challenge challenge(secret, "links", fsdp::Challenge::Side::kAccepts);
  for (size_t at = 0; at < size && !store.closed();) {
    const ssize_t sent = send(stranger.get(), data + at, size - at, MSG_NOSIGNAL);
    if (sent <= 0) break;
    at += static_cast<size_t>(sent);
    store.pump();
    if (challenge.look(store) == fsdp::Challenge::State::kPassed) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  say(data, size);
  const auto value = fsdp::Json::parse(data, data + size, nullptr, false);
  if (value.is_object()) check_all(value);
  return 0;
}
