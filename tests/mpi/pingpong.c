/* Ping-pong, and messages in windows, between pairs of ranks (measure.h): what is measured is said in one of two ways.
 *
 *     pingpong MILLISECONDS WORD...       all of these, one after the other: timed milliseconds for each, BYTES or KIND:BYTES
 *     pingpong --control NAME LARGEST     what comes over the abstract Unix socket NAME, sizes of up to LARGEST bytes
 *
 * Jobs under control sleep between their measurements, so that several, each over a transport of its own, take turns on the same
 * processors. Every rank connects and says `rank N`; each line that it receives is `MILLISECONDS WORD`, its answer the result (rank 0) or
 * `done`. The end of the connection ends the job. A measurement that takes longer than LIMIT seconds ends it, too, by SIGALRM: what
 * stands still must not keep the processors from the others. */
#include "measure.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { LIMIT = 30, LINE = 160 };

static int connected_to(const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    REQUIRE(length + 1 < sizeof address.sun_path, "the name `%s` is too long", name);
    memcpy(address.sun_path + 1, name, length);
    int control = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    REQUIRE(control >= 0 && connect(control, (struct sockaddr *)&address, size) == 0, "cannot connect to %s", name);
    return control;
}

/* The next line, without its end; 0 at the end of the connection. */
static int next_line(int control, char *line) {
    size_t length = 0;
    while (length + 1 < LINE && read(control, line + length, 1) == 1) {
        if (line[length] == '\n') {
            line[length] = 0;
            return 1;
        }
        length++;
    }
    return 0;
}

static void answer(int control, const char *text) {
    dprintf(control, "%s\n", text);
}

static void serve(int control) {
    char line[LINE], word[LINE], text[LINE];
    double milliseconds;
    size_t size;
    snprintf(text, sizeof text, "rank %d", rank);
    answer(control, text);
    while (next_line(control, line)) {
        REQUIRE(sscanf(line, "%lf %159s", &milliseconds, word) == 2, "`%s` cannot be read", line);
        const struct kind *kind = parse_word(word, &size);
        alarm(LIMIT);
        measure(kind, size, milliseconds / 1000, text, sizeof text);
        alarm(0);
        answer(control, rank == 0 ? text : "done");
    }
}

static void run_words(char **words, int count, double seconds) {
    char text[LINE];
    size_t size;
    for (int i = 0; i < count; i++) {
        const struct kind *kind = parse_word(words[i], &size);
        measure(kind, size, seconds, text, sizeof text);
        if (rank != 0) continue;
        printf("%s\n", text);
        fflush(stdout);
    }
}

static size_t largest_of(char **words, int count) {
    size_t largest = 0, size;
    for (int i = 0; i < count; i++) {
        parse_word(words[i], &size);
        if (size > largest) largest = size;
    }
    return largest;
}

int main(int argc, char **argv) {
    int controlled = argc == 4 && strcmp(argv[1], "--control") == 0;
    if (controlled) alarm(LIMIT);
    make_pairs(&argc, &argv);
    REQUIRE(argc > 2, "usage: pingpong MILLISECONDS WORD..., or --control NAME LARGEST");
    if (controlled) {
        make_buffers(strtoull(argv[3], NULL, 10));
        MPI_Barrier(MPI_COMM_WORLD);
        alarm(0);
        serve(connected_to(argv[2]));
    } else {
        make_buffers(largest_of(argv + 2, argc - 2));
        run_words(argv + 2, argc - 2, atof(argv[1]) / 1000);
    }
    close_all();
    finish("pingpong");
    return 0;
}
