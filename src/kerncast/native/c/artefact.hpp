// @TITLE@, by kerncast. Generated: `kerncast export` makes it again.
//
//     auto selector = @PREFIX@::Selector::create(); // or, with exceptions: @PREFIX@::Selector selector;
//     if (!selector) return fail(selector.message());
//     @PREFIX@::Problem problem;
//     ...
//     if (auto answer = selector->select(problem)) run(answer.config);
//
// C++17 or later; neither exceptions nor run-time type information are needed. Only one thread at a time may use a selector: give
// each thread its own.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
#define KERNCAST_THROWS 1
#include <stdexcept>
#else
#define KERNCAST_THROWS 0
#endif

#include "@PREFIX@.h"

namespace @PREFIX@ {

enum class Status {
@STATUSES@
};

enum class Tier {
@TIERS@
};

enum class Pin {
    none = KERNCAST_PIN_NONE,
    decided = KERNCAST_PIN_DECIDED,
    not_applied = KERNCAST_PIN_NOT_APPLIED,
};

inline const char *name(Status status) { return kerncast_status_name(static_cast<kerncast_status>(status)); }
inline const char *name(Tier tier) { return kerncast_tier_name(static_cast<kerncast_tier>(tier)); }

// A value, or the status that says why there is none, as std::expected has it.
template <class T> class Result {
public:
    Result(T value) : value_(std::move(value)) {}
    Result(Status error) : error_(error) {}

    bool has_value() const { return value_.has_value(); }
    explicit operator bool() const { return has_value(); }
    Status error() const { return error_; }
    const char *message() const { return name(error_); }

    // Only of a result that has a value.
    T &operator*() & { return *value_; }
    const T &operator*() const & { return *value_; }
    T &&operator*() && { return *std::move(value_); }
    T *operator->() { return &*value_; }
    const T *operator->() const { return &*value_; }

private:
    Status error_ = Status::ok;
    std::optional<T> value_;
};

@PROBLEM_STRUCT@
@CONFIG_STRUCT@
// A config that the artefact may answer with.
struct Candidate {
    std::int32_t number = -1;
    Config config;
    std::string label; // the kernel's name in the training data, unless it depends on the problem
};

// `config` is what to run when the status is ok, and a fallback when it is out_of_range or unsure and `candidate` is not -1.
struct Answer {
    Status status = Status::bad_input;
    Tier tier = Tier::none;
    std::int32_t candidate = -1;
    Config config;
    std::optional<double> time_ns, lower_ns, upper_ns, efficiency;
    Pin pin = Pin::none;
    std::string label, message;

    explicit operator bool() const { return status == Status::ok; }

    static Answer from_c(const kerncast_answer &c) {
        const auto known = [](double value) { return value >= 0.0 ? std::optional<double>(value) : std::nullopt; };
        return {static_cast<Status>(c.status), static_cast<Tier>(c.tier), c.candidate, Config::from_c(c.config),
                known(c.time_ns), known(c.lower_ns), known(c.upper_ns), known(c.efficiency), static_cast<Pin>(c.pin),
                c.label ? c.label : "", c.message};
    }
};

class Selector {
public:
    // mismatch: header and library are from different exports; corrupt: the tables are damaged.
    static Result<Selector> create() {
        kerncast_context *made = nullptr;
        const kerncast_status status = kerncast_create(&made);
        if (status != KERNCAST_OK) return static_cast<Status>(status);
        return Selector(made);
    }

#if KERNCAST_THROWS
    // The same; throws instead.
    Selector() {
        auto made = create();
        if (!made) throw std::runtime_error(std::string("@PREFIX@: ") + made.message());
        *this = std::move(*made);
    }
#endif

    Answer select(const Problem &problem, Tier tier = Tier::automatic) {
        const kerncast_problem asked = problem.to_c();
        kerncast_answer answer;
        kerncast_select(context_.get(), &asked, static_cast<kerncast_tier>(tier), &answer);
        return Answer::from_c(answer);
    }

    // An answer for each problem, in their order.
    std::vector<Answer> select_many(const std::vector<Problem> &problems, Tier tier = Tier::automatic) {
        std::vector<kerncast_problem> asked;
        asked.reserve(problems.size());
        for (const Problem &problem : problems) asked.push_back(problem.to_c());
        std::vector<kerncast_answer> answers(problems.size());
        kerncast_select_many(context_.get(), asked.data(), asked.size(), static_cast<kerncast_tier>(tier), answers.data());
        std::vector<Answer> result;
        result.reserve(answers.size());
        for (const kerncast_answer &answer : answers) result.push_back(Answer::from_c(answer));
        return result;
    }

    std::vector<Answer> rank(const Problem &problem, std::size_t count, Tier tier = Tier::automatic) {
        const kerncast_problem asked = problem.to_c();
        std::vector<kerncast_answer> answers(count ? count : 1);
        std::size_t found = 0;
        const kerncast_status status = kerncast_rank(context_.get(), &asked, static_cast<kerncast_tier>(tier), answers.data(),
                                                     answers.size(), &found);
        std::vector<Answer> result;
        for (std::size_t i = 0; i < (status == KERNCAST_OK ? found : 1); i++) result.push_back(Answer::from_c(answers[i]));
        return result;
    }

    // The numbers of candidates are below this one.
    static std::int32_t candidate_count() { return kerncast_candidates(); }

    // The configs that some tier of this artefact may answer with, by number.
    static std::vector<Candidate> candidates() {
        std::vector<Candidate> result;
        for (std::int32_t number = 0; number < candidate_count(); number++) {
            kerncast_config config;
            if (kerncast_candidate(number, &config) == KERNCAST_OK)
                result.push_back({number, Config::from_c(config), kerncast_label(number)});
        }
        return result;
    }

    // One value for each of candidate_count() configs: whether it may be chosen. False: not as many values as candidates.
    bool set_available(const std::vector<bool> &available) {
        const std::vector<unsigned char> bytes(available.begin(), available.end());
        return kerncast_set_available(context_.get(), bytes.data(), bytes.size()) == KERNCAST_OK;
    }

    bool deny(std::int32_t candidate) { return kerncast_deny(context_.get(), candidate) == KERNCAST_OK; }

    // Problems that agree with `problem` in all that it sets get this config; -1 leaves them to the model again. The answer
    // is not ok if the config cannot run them, and says why.
    Answer pin(const Problem &problem, std::int32_t candidate) {
        const kerncast_problem pinned = problem.to_c();
        kerncast_answer answer;
        kerncast_pin(context_.get(), &pinned, candidate, &answer);
        return Answer::from_c(answer);
    }

    void clear_overrides() { kerncast_clear_overrides(context_.get()); }

    static std::string label(const Problem &problem, std::int32_t candidate) {
        const kerncast_problem asked = problem.to_c();
        return kerncast_label_for(&asked, candidate);
    }

    static Answer predict(const Problem &problem, const Config &config) {
        const kerncast_problem asked = problem.to_c();
        const kerncast_config chosen = config.to_c();
        kerncast_answer answer;
        kerncast_predict(&asked, &chosen, &answer);
        return Answer::from_c(answer);
    }

    std::string query(std::string_view text) {
        std::string out(4096, '\0');
        std::size_t needed = 0;
        const auto ask = [&] {
            return kerncast_query_json(context_.get(), text.data(), text.size(), out.data(), out.size(), &needed);
        };
        while (ask() == KERNCAST_TOO_SMALL) out.resize(needed + 1);
        out.resize(needed ? needed - 1 : 0); // `needed` counts the closing zero
        return out;
    }

private:
    explicit Selector(kerncast_context *made) : context_(made) {}

    struct Destroy {
        void operator()(kerncast_context *context) const { kerncast_destroy(context); }
    };
    std::unique_ptr<kerncast_context, Destroy> context_;
};

#undef KERNCAST_THROWS

} // namespace @PREFIX@
