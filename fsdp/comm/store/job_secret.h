// JobSecret: what the processes of a job that spans hosts share, so that a stranger on the network
// is none of them. Read from OFSDP_SECRET_FILE, the path of a file that its owner alone can read,
// or from OFSDP_SECRET; without either it is empty, and then anybody can prove it.
//
// A proof is an HMAC-SHA256 (RFC 2104) with the secret as its key: 64 hexadecimal digits.
//
// Threads: any, as long as nobody changes the environment. Errors: kInput for a file that others
// can read, that is empty or too long, or for an empty variable.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/status.h"

namespace ofsdp::fsdp {

// For whoever starts ranks on several hosts without one.
inline constexpr const char* kNoSecret =
    "warning: neither OFSDP_SECRET_FILE nor OFSDP_SECRET is set: whoever reaches the ports of this "
    "run can join it (docs/ranks.md)";

class JobSecret {
 public:
  static constexpr size_t kMostBytes = 4096;

  JobSecret() = default;
  explicit JobSecret(std::string bytes) : bytes_(std::move(bytes)) {}
  static Result<JobSecret> from_environment();
  static JobSecret drawn();  // at random

  bool empty() const { return bytes_.empty(); }
  const std::string& bytes() const { return bytes_; }

  // Why another end that holds the job's secret turns this one away.
  std::string refusal() const;

  // Over all parts, whose lengths count, so that no two lists of parts have the same proof.
  std::string proof(const std::vector<std::string>& parts) const;
  // In a time that does not depend on how much of `claimed` is right.
  bool proves(const std::string& claimed, const std::vector<std::string>& parts) const;

 private:
  std::string bytes_;
};

// 32 random bytes in hexadecimal digits, never used before.
std::string drawn_nonce();

}  // namespace ofsdp::fsdp
