// JobSecret: shared by the processes of a job that spans hosts, so that strangers cannot join. It
// is read from OFSDP_SECRET_FILE, the path of a file that only the owner can read, or from
// OFSDP_SECRET. If neither is set, it is empty, and then anybody can prove it.
//
// A proof is an HMAC-SHA256 (RFC 2104) with the secret as the key: 64 hexadecimal digits.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/status.h"

namespace ofsdp::fsdp {

// The warning if ranks on several hosts have no secret.
inline constexpr const char* kNoSecret =
    "warning: neither OFSDP_SECRET_FILE nor OFSDP_SECRET is set: whoever reaches the ports of this "
    "run can join it (docs/ranks.md)";

class JobSecret {
 public:
  static constexpr size_t kMaxBytes = 4096;

  JobSecret() = default;
  explicit JobSecret(std::string bytes) : bytes_(std::move(bytes)) {}
  // Returns kInput if others can read the file, if it is empty or too long, or if the variable is
  // empty.
  static Result<JobSecret> from_environment();
  static JobSecret drawn();  // at random

  bool empty() const { return bytes_.empty(); }
  const std::string& bytes() const { return bytes_; }

  // Returns why an end that holds the job's secret turns this one away.
  std::string refusal() const;

  // Covers the length of each part too, so that no two lists of parts have the same proof.
  std::string proof(const std::vector<std::string>& parts) const;
  // Takes a time that does not depend on how many digits of `claimed` are right.
  bool proves(const std::string& claimed, const std::vector<std::string>& parts) const;

 private:
  std::string bytes_;
};

// Returns 32 random bytes in hexadecimal digits.
std::string drawn_nonce();

}  // namespace ofsdp::fsdp
