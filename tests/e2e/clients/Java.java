// java.net.http, with a body made by hand. Usage: java Java.java URL PICTURE, with a name on each line of stdin.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Path;

import static java.nio.charset.StandardCharsets.UTF_8;

public class Java {
    public static void main(String[] arguments) throws Exception {
        var client = HttpClient.newHttpClient();
        var out = new PrintStream(System.out, true, UTF_8);
        var names = new BufferedReader(new InputStreamReader(System.in, UTF_8));
        String name;
        while ((name = names.readLine()) != null) {
            String boundary = "----boundary" + System.nanoTime();
            String head = "--" + boundary + "\r\n"
                + "Content-Disposition: form-data; name=\"files\"; filename=\"" + name + "\"\r\n"
                + "Content-Type: image/jpeg\r\n\r\n";
            var body = HttpRequest.BodyPublishers.concat(
                HttpRequest.BodyPublishers.ofString(head),
                HttpRequest.BodyPublishers.ofFile(Path.of(arguments[1])),
                HttpRequest.BodyPublishers.ofString("\r\n--" + boundary + "--\r\n"));
            var request = HttpRequest.newBuilder(URI.create(arguments[0]))
                .header("Content-Type", "multipart/form-data; boundary=" + boundary)
                .POST(body)
                .build();
            out.println(client.send(request, HttpResponse.BodyHandlers.ofString(UTF_8)).body());
        }
    }
}
