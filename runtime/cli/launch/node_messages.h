// The messages of launchers at the rendezvous: keys of a Store (fsdp/comm/store/store.h), with one
// Store between the launcher of each host (G) and the coordinator (C), which runs in the launcher
// that hosts the rendezvous. Both first prove the secret (fsdp/comm/store/doorkeeper.h).
//
// G > C `hello`: a NodeHello with magic, version, job and the offer of the host. C > G `welcome`:
// the launcher is accepted and waits; `refused`: a Refusal; `turn`: a Turn, an assignment to start
// or the end of the run; `stop`: a StopOrder, end the ranks of this host. G > C `failing`: a rank
// has failed, and the others of the host have a few seconds; `ended`: an Outcome, no rank of this
// host is left, and a free port. Both send `beat` at intervals. Values that are no message of ours
// are read as none.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "fsdp/comm/rank_identity.h"
#include "fsdp/comm/store/store.h"
#include "kernels/base/status.h"
#include "runtime/options.h"

namespace ofsdp::cli {

inline constexpr int kRendezvousVersion = 4;
inline constexpr const char* kLauncherPurpose = "meeting of launchers";

// The offer that one host's launcher makes.
struct NodeHello {
  int version = kRendezvousVersion;
  std::string job = {};  // --rdzv-id
  int node_rank = -1;    // -1: any
  int nnodes = 1;
  int nproc = 1;
  int free_port = 0;
  std::string host = {};
  bool own = false;  // this launcher runs the coordinator
};

// The ranks that a host starts.
struct Assignment {
  int node = 0;              // this host's number
  int nodes = 1;             // hosts in this attempt
  int first_rank = 0;        // ranks on a host have consecutive numbers
  int world = 1;             // ranks on all hosts
  int first_world = 1;       // of the first attempt
  int restart = 0;           // earlier attempts
  bool from_latest = false;  // the attempt resumes a checkpoint that this run has saved
  std::string run_id = {};   // shared by all ranks in a run, and by no other run
  std::string master_address = "127.0.0.1";  // rank 0's host, as others reach it
  int master_port = 29500;                   // was free there when it was sent
};

// How a host's ranks ended.
struct Outcome {
  int status = 0;            // 0 done, 1 failed, 2 the input is wrong; else a signal stopped them
  bool spoke = false;        // a rank has given the reason to the launcher (`line`) or the user
  bool interrupted = false;  // SIGINT or SIGTERM came
  std::string line = {};     // a rank's reason, else the launcher's
  int free_port = 29500;     // for the next attempt
};

inline bool has_failed(int status) { return status == 1 || status == 2; }

// A launcher's next step.
struct Turn {
  bool start = false;          // false: the run has ended with `status`
  Assignment assignment = {};  // of a start
  int status = 0;              // of an end
  std::string line = {};       // why the previous attempt failed, if no rank has said so
  std::string notice = {};     // this launcher prints it for all
};

// Why a launcher may not join, and whether it may try again.
struct Refusal {
  std::string why = {};
  bool again = false;
};

// Ends this attempt, since a rank on another host failed or a host is gone.
struct StopOrder {
  int restart = 0;  // the attempt's number
};

void list_fields(StoreFields& fields, Refusal& refusal);
void list_fields(StoreFields& fields, StopOrder& stop);
void list_fields(StoreFields& fields, Outcome& outcome);
void list_fields(StoreFields& fields, Turn& turn);

Json hello_value(const NodeHello& hello);
// If the version differs, only the version is read.
std::optional<NodeHello> read_hello(const Json& value);

// Restarts after a failure: RestartPoint gives the launcher the checkpoint to resume, after_restart
// gives a rank its changed options.
//
// The launcher passes the choice to the ranks in the environment (OFSDP_RESTART,
// OFSDP_FIRST_WORLD). If there are fewer ranks than at first, the batch of a rank becomes the
// largest size, not above the requested one, that divides the global batch, so the planned memory
// is enough; more accumulation makes up for it. The environment must not change meanwhile. Errors:
// kInput if the global batch is no multiple of the ranks. A folder that cannot be read counts as
// empty.

// Returns the folder that the run with this id has made; empty: none.
using FindFolder = std::function<std::string(const std::string& run_id)>;

// The latest checkpoint that this run itself has saved, or else the start of the run. Checkpoints
// from before do not count: a new run next to old checkpoints must not continue them.
class RestartPoint {
 public:
  // Must be called when the run starts. `dir`: where it saves; if that is empty, it saves in the
  // folder that `find` returns, or nowhere. `most`: allowed restarts.
  RestartPoint(const std::string& dir, int most, FindFolder find = {});
  // Sets `next` to the attempt after `ended`, and returns the line to print: "restart 1 of 2: from
  // the latest checkpoint in DIR". None: the run has ended.
  std::optional<std::string> start_again(const Outcome& ended, Assignment& next) const;

 private:
  struct Latest {
    std::string name;
    uint64_t file = 0;  // identifies the manifest file: a checkpoint saved again is another file
    bool operator==(const Latest&) const = default;
  };
  static Latest latest_in(const std::string& dir);
  static std::string text(const std::string& dir, bool saved);

  std::string dir_;
  int most_;
  FindFolder find_;
  Latest before_;
};

// Returns this rank's options after a restart, else `options`.
Result<Options> after_restart(Options options, int world, const EnvironmentLookup& lookup = {});

}  // namespace ofsdp::cli
