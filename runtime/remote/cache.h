// Files at addresses, fetched into a cache: every reader then works on a local path.
//
// The cache is XDG_CACHE_HOME/onnx-fsdp, else ~/.cache/onnx-fsdp. A file lies in a folder that its
// address names, under the SHA-256 of its content, so a run never sees it change. It gets its name
// when it is whole: until then its bytes are in a file `part`.
//
// [Note: files from a network] A file is fetched as a whole. Parts would save time only for a run
// that reads few rows, but each later failure of the network would end a run in mid-training. A
// range is asked for to continue a transfer that was cut, and only of the same version (If-Range).
// Whole is what the server says is whole: the length, and the checksum if it gives one
// (x-amz-checksum-sha256, x-amz-checksum-crc32, Repr-Digest, Digest). Without a checksum one more
// request asks for bytes after the end, of which there must be none.
//
// A server's 5xx, stalls and cuts are tried again, with pauses that double; 6 failures in a row
// without a new byte end the command, and so does a file that changes for the third time.
//
// A lock lets one process of a host fetch while the others wait. Who starts ranks fetches first: by
// the variable OFSDP_FETCHED_SINCE its ranks take what it found and ask no server. Later commands
// ask whether the file is the same (If-None-Match) and fetch it only if not.
//
// Errors: kInput for a wrong address, a missing file or library, a full cache; kFault if the server
// or the network fails. The message names the address.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/status.h"
#include "runtime/remote/address.h"

namespace ofsdp::runtime {

struct FetchRules {
  int failures = 6;           // in a row, without a new byte
  int changes = 3;            // of the file while it is fetched
  double first_pause = 0.25;  // seconds; doubles with each failure, at most 8
  double stall_seconds = 30;  // without a byte
  std::string cache = {};     // the folder; empty: as above
  int64_t since = 0;          // an entry that was compared with the server then, or later, is taken
};

// Returns the path of the file with the content at `address`.
Result<std::string> fetch_file(const std::string& address, const FetchRules& rules);
// The same by the rules of a command, which are those of the processes that it starts.
Result<std::string> fetch_file(const std::string& address);

// Returns a path as it is; fetches an address.
Result<std::string> local_file(const std::string& place);

// Returns the address of a fetched file; another path as it is, and that of an address above 200
// bytes.
std::string address_of(const std::string& path);

}  // namespace ofsdp::runtime
