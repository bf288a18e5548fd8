// NodeChannel: one end of a TCP connection between launchers. A message is four bytes of length,
// most significant first, and so many bytes of JSON: an object with a "kind".
//
// Nothing here blocks: `send` keeps what the socket does not take, `pump` moves bytes both ways,
// `receive` gives the messages that have come whole. Bounded: a message of more than kMostMessage
// bytes, one that is no object with a kind, or a peer that does not read closes the channel.
//
// Ownership: owns the socket. Threads: one. Errors: a broken connection is a state (`closed`), for
// the callers know which node it was.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "kernels/base/posix_file.h"

namespace ofsdp::cli {

class NodeChannel {
 public:
  static constexpr size_t kMostMessage = 64 * 1024;
  static constexpr size_t kMostUnsent = 256 * 1024;

  NodeChannel() = default;
  explicit NodeChannel(UniqueFd socket);

  int fd() const { return socket_.get(); }
  bool closed() const { return !socket_.valid(); }
  bool has_unsent() const { return !out_.empty(); }
  void close() { socket_.reset(); }

  void send(const nlohmann::json& message);
  void pump();
  std::optional<nlohmann::json> receive();

  // How long the peer has said nothing. Time in which this process did not look (it was stopped)
  // does not count.
  std::chrono::milliseconds silence();

 private:
  void write_out();
  void read_in();

  UniqueFd socket_;
  std::string in_, out_;
  std::chrono::milliseconds silence_{0};
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
};

}  // namespace ofsdp::cli
