<?php
// PHP's curl. Usage: php php.php URL PICTURE, with a name on each line of stdin.
[, $url, $picture] = $argv;
foreach (file('php://stdin', FILE_IGNORE_NEW_LINES) as $name) {
    $request = curl_init($url);
    curl_setopt_array($request, [
        CURLOPT_POSTFIELDS => ['files' => new CURLFile($picture, 'image/jpeg', $name)],
        CURLOPT_RETURNTRANSFER => true,
    ]);
    echo curl_exec($request), "\n";
}
